"""Scripts by which shells complete a command, made from its argparse parser."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class _Option:
    names: list[str]
    help: str
    takes_value: bool
    choices: list[str]


@dataclass
class _Command:
    """``path``: the words that lead to it, after the program's name."""

    path: tuple[str, ...]
    help: str
    options: list[_Option] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # choices of arguments
    inner: list[_Command] = field(default_factory=list)

    def all(self) -> Iterator[_Command]:
        yield self
        for each in self.inner:
            yield from each.all()

    @property
    def key(self) -> str:
        return "".join(f" {word}" for word in self.path)


def _look_at(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), about: str = "") -> _Command:
    found = _Command(path, about)
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            found.inner += [_look_at(each, (*path, name), helps.get(name, "")) for name, each in action.choices.items()]
            continue
        choices = [str(each) for each in action.choices or ()]
        if not action.option_strings:
            found.words += choices
            continue
        takes_value = action.nargs != 0
        text = " ".join((action.help or "").replace("%%", "%").split())
        found.options.append(_Option(list(action.option_strings), text, takes_value, choices))
    return found


# ---- bash ----

# The words before the cursor lead to a command; then the one right before it may be an option that wants a value.
_BASH = """\
# Completes `{program}` in bash: source <({program} completion bash)
{function}() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path="" words="" i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
            *" --") return ;;
{commands}
        esac
    done
    case "$path $before" in
{values}
    esac
    case "$path" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F {function} {program}
"""


def bash(parser: argparse.ArgumentParser) -> str:
    top = _look_at(parser)
    values = []
    for at, option in _with_values(top):
        found = f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(option.choices))} -- "$word")); '
        values.append(f"{at}) {found if option.choices else ''}return ;;")
    words = [f"{shlex.quote(each.key)}) words={shlex.quote(' '.join(_words(each)))} ;;" for each in top.all()]
    return _BASH.format(
        program=parser.prog,
        function=_function(parser),
        commands=_commands(top, 'path="$path ${COMP_WORDS[i]}"'),
        values=_indented(values),
        words=_indented(words),
    )


def _commands(top: _Command, then: str) -> str:
    found = [shlex.quote(each.key) for each in top.all() if each.path]
    return _indented([f"{'|'.join(found)}) {then} ;;"] if found else [], depth=12)


def _with_values(top: _Command) -> Iterator[tuple[str, _Option]]:
    """A pattern for the words that lead to each option that wants a value."""
    for each in top.all():
        for option in each.options:
            if option.takes_value:
                yield "|".join(shlex.quote(f"{each.key} {name}") for name in option.names), option


def _words(command: _Command) -> list[str]:
    options = [name for option in command.options for name in option.names]
    return [each.path[-1] for each in command.inner] + command.words + options


def _function(parser: argparse.ArgumentParser) -> str:
    return "_" + re.sub(r"\W", "_", parser.prog)


def _indented(lines: list[str], depth: int = 8) -> str:
    return "\n".join(" " * depth + line for line in lines)


# ---- zsh ----

_ZSH = """\
#compdef {program}
# Completes `{program}` in zsh: source <({program} completion zsh), after compinit; or as a file _{program} in $fpath
{function}() {{
    local before="${{words[CURRENT-1]}}" where="" i
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        case "$where ${{words[i]}}" in
            *" --") _files; return ;;
{commands}
        esac
    done
    case "$where $before" in
{values}
    esac
    case "$where" in
{words}
    esac
    _describe '{program}' found || _files
}}
compdef {function} {program}
"""


def zsh(parser: argparse.ArgumentParser) -> str:
    top = _look_at(parser)
    values = []
    for at, option in _with_values(top):
        found = " ".join(map(shlex.quote, option.choices))
        values.append(f"{at}) {f'compadd -- {found}' if found else '_files'}; return ;;")
    words = [f"{shlex.quote(each.key)}) found=({' '.join(_described(each))}) ;;" for each in top.all()]
    return _ZSH.format(
        program=parser.prog,
        function=_function(parser),
        commands=_commands(top, 'where="$where ${words[i]}"'),
        values=_indented(values),
        words=_indented(words),
    )


def _described(command: _Command) -> Iterator[str]:
    """``word:what it is``, as ``_describe`` wants it."""
    for each in command.inner:
        yield shlex.quote(f"{each.path[-1]}:{each.help}")
    for word in command.words:
        yield shlex.quote(word.replace(":", "\\:"))
    for option in command.options:
        for name in option.names:
            yield shlex.quote(f"{name}:{option.help}")


# ---- fish ----


def fish(parser: argparse.ArgumentParser) -> str:
    top, program = _look_at(parser), parser.prog
    lines = [f"# Completes `{program}` in fish: {program} completion fish | source"]
    for command in top.all():
        lines += [f"complete -c {program} {part}" for part in _fish_parts(command)]
    return "\n".join(lines) + "\n"


def _fish_parts(command: _Command) -> Iterator[str]:
    where = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.path)
    inner = " ".join(each.path[-1] for each in command.inner)
    here = "; and ".join(part for part in (where, f"not __fish_seen_subcommand_from {inner}" if inner else "") if part)
    begin = f"-n {_fish_quoted(here)} " if here else ""
    for each in command.inner:
        yield f"{begin}-f -a {_fish_quoted(each.path[-1])} -d {_fish_quoted(each.help)}"
    for word in command.words:
        yield f"{begin}-f -a {_fish_quoted(word)}"
    for option in command.options:
        names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
        value = (
            f" -x -a {_fish_quoted(' '.join(option.choices))}"
            if option.choices
            else " -r"
            if option.takes_value
            else ""
        )
        yield f"{begin}{names}{value} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
