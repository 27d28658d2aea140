"""How processes of a mesh are started: program, arguments and environment, and the CPUs and memory that they may use.

Imported only by programs that choose any of it; what everybody else gets is in ``launch``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch._processes import launch
from monarch._values.geometry import Point

__all__ = ["BootstrapCommand", "default_bootstrap_cmd"]


class BootstrapCommand:
    """The command that becomes a process of a mesh: ``spawn_procs(bootstrap_command=...)``. A value; picklable.

    ``program`` is looked up in ``PATH`` if it has no slash; ``arg0`` is what it finds as its own name (None: the
    program). ``args`` must lead to a worker: take them from :func:`default_bootstrap_cmd`. ``env`` is added to the
    environment of the process that spawns, where None removes a variable; with ``inherit_env=False`` it is all there
    is. The attributes may be set.
    """

    def __init__(
        self,
        program: str,
        arg0: str | None,
        args: Sequence[str],
        env: Mapping[str, str | None],
        inherit_env: bool = True,
    ) -> None:
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise TypeError(f"args of a BootstrapCommand must be a sequence of str, but is {args!r}")
        if not isinstance(env, Mapping):
            raise TypeError(f"env of a BootstrapCommand must map names to values, but is {env!r}")
        self.program = program
        self.arg0 = arg0
        self.args = list(args)
        self.env = dict(env)
        self.inherit_env = inherit_env
        _check(self)

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with these variables too; they win over what was there. ``TypeError`` for what is no text."""
        if not isinstance(env, Mapping):
            raise TypeError(f"with_env takes a mapping of names to values, not {env!r}")
        return type(self)(self.program, self.arg0, self.args, {**self.env, **env}, self.inherit_env)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BootstrapCommand) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its attributes may be set

    def __repr__(self) -> str:
        return (
            f"BootstrapCommand(program={self.program!r}, args={self.args!r}, env={self.env!r}, "
            f"inherit_env={self.inherit_env!r})"
        )


def default_bootstrap_cmd() -> BootstrapCommand:
    """How processes are started unless one says otherwise: by the interpreter of this process, with its environment."""
    return BootstrapCommand(launch.default_python or sys.executable, None, launch.interpreter_args("worker"), {})


def starts(
    points: Sequence[Point],
    procs_per_host: int,
    command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None,
    proc_bind: list[dict[str, str]] | None,
) -> list[tuple[BootstrapCommand | None, list[str]]]:
    """For each process of a mesh: its command (None: the default) and what stands before it. All or ValueError."""
    prefixes: list[list[str]] = [[] for _ in range(procs_per_host)]
    if proc_bind is not None:
        if len(proc_bind) != procs_per_host:
            raise ValueError(f"proc_bind length ({len(proc_bind)}) must equal procs_per_host ({procs_per_host})")
        prefixes = [_binding(f"proc_bind[{number}]", bind) for number, bind in enumerate(proc_bind)]
    found = []
    for point in points:
        chosen = command(point) if callable(command) else command
        if chosen is not None:
            _check(chosen)
        found.append((chosen, prefixes[point.rank % procs_per_host]))
    return found


def _check(command: Any) -> None:
    if not isinstance(command, BootstrapCommand):
        raise TypeError(
            "bootstrap_command must be a BootstrapCommand, or a function that gets a Point and returns one, "
            f"but there is {command!r}"
        )
    texts = [("program", command.program), *((f"args[{i}]", arg) for i, arg in enumerate(command.args))]
    texts += [("arg0", command.arg0)] if command.arg0 is not None else []
    for name, value in command.env.items():
        texts.append(("the name of a variable in env", name))
        texts += [(f"env[{name!r}]", value)] if value is not None else []
    for what, text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{what} of a BootstrapCommand must be a str, but is {text!r}")
        if "\0" in text:
            raise ValueError(f"{what} of a BootstrapCommand contains a NUL character: {text!r}")
    if not command.program:
        raise ValueError("a BootstrapCommand needs a program")
    for name in command.env:
        if not name or "=" in name:
            raise ValueError(f"not a name of an environment variable: {name!r}")


_NUMACTL = ("cpunodebind", "membind", "physcpubind")


def _binding(where: str, bind: dict[str, str]) -> list[str]:
    """The command that restricts the one after it as ``bind`` says; empty if that says nothing."""
    if not isinstance(bind, dict):
        raise TypeError(f"{where} must be a dict such as {{'cpus': '0-3'}}, but is {bind!r}")
    for key, value in bind.items():
        if key not in (*_NUMACTL, "cpus"):
            raise ValueError(f"{where} has the unknown key {key!r}; known are {', '.join(_NUMACTL)} and cpus")
        if not isinstance(value, str):
            raise TypeError(f"{where}[{key!r}] must be a str such as '0-3,8', but is {value!r}")
        plain = value if key == "cpus" else value.lstrip("+!")  # numactl: relative, all but these
        if not _is_list(plain) and (plain != "all" or key == "cpus"):
            raise ValueError(f"{where}[{key!r}] must be a list of numbers and ranges such as '0-3,8', but is {value!r}")
    options = [f"--{key}={bind[key]}" for key in _NUMACTL if key in bind]
    prefix = ["numactl", *options] if options else []
    # The last one wins for the CPUs: a list of them says more than their node.
    return [*prefix, "taskset", "-c", bind["cpus"]] if "cpus" in bind else prefix


def _is_list(text: str) -> bool:
    """'0', '0-3,8', and '0-30:2' for every second one."""
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        numbers = [first, *([last] if dash else []), *([step] if ":" in part else [])]
        if not all(number.isascii() and number.isdigit() for number in numbers):
            return False
        if dash and int(first) > int(last):
            return False
    return True
