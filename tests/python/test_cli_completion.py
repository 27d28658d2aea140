"""`monarch completion`: the scripts, run by the shells that are here."""

import argparse
import os
import shutil
import subprocess

import pytest

from monarch.tools import _completion
from monarch.tools.cli import main

LIMIT = 30


@pytest.fixture
def parser():
    """One with all that a parser may have."""
    top = argparse.ArgumentParser(prog="tool-x")
    top.add_argument("--version", action="store_true")
    commands = top.add_subparsers()
    copy = commands.add_parser("copy", help='what it\'s for: `all`, 5%% of "it"')
    copy.add_argument("--how", choices=("fast", "slow"), help="it's 100%% safe: $HOME")
    copy.add_argument("-q", "--quiet", action="store_true")
    copy.add_argument("--to", metavar="FOLDER")
    copy.add_argument("--hidden", help=argparse.SUPPRESS)
    copy.add_argument("what", choices=("this", "that"))
    context = commands.add_parser("context", help="contexts").add_subparsers()
    context.add_parser("use", help="one").add_argument("--force", action="store_true")
    context.add_parser("rm", help="none")
    return top


def completed(script, *words):
    """What bash offers for the last of these words."""
    ask = f"""{script}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_{words[0].replace("-", "_")}; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", ask, "bash", *words], capture_output=True, text=True, timeout=LIMIT,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
@pytest.mark.parametrize(
    "words, offered",
    [
        ([""], ["copy", "context", "-h", "--help", "--version"]),
        (["co"], ["copy", "context"]),
        (["copy", ""], ["this", "that", "-h", "--help", "--how", "-q", "--quiet", "--to"]),
        (["copy", "--qu"], ["--quiet"]),
        (["copy", "--how", ""], ["fast", "slow"]),
        (["copy", "--how", "s"], ["slow"]),
        (["copy", "--to", ""], []),  # files, by the default
        (["copy", "--to", "context", ""], ["this", "that", "-h", "--help", "--how", "-q", "--quiet", "--to"]),
        (["copy", "this", "--", ""], []),
        (["context", ""], ["use", "rm", "-h", "--help"]),
        (["context", "use", "-"], ["-h", "--help", "--force"]),
        (["no-such", "x"], []),
    ],
)
def test_what_bash_offers(parser, words, offered):
    assert completed(_completion.bash(parser), "tool-x", *words) == offered


@needs_bash
def test_bash_completes_monarch(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "monarch", "wor") == ["worker"]
    assert completed(script, "monarch", "completion", "") == ["bash", "zsh", "fish", "-h", "--help"]
    assert completed(script, "monarch", "worker", "--b") == ["--bind"]


@pytest.mark.parametrize("shell, arguments", [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-config", "-n"])])
def test_shells_can_read_their_script(parser, tmp_path, shell, arguments):
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"there is no {shell}")
    file = tmp_path / "script"
    file.write_text(getattr(_completion, shell)(parser))
    done = subprocess.run([found, *arguments, str(file)], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_zsh_and_fish_have_every_word_with_what_it_is(parser):
    zsh, fish = _completion.zsh(parser), _completion.fish(parser)
    assert " --quiet: " in zsh and "' copy --how') compadd -- fast slow; return ;;" in zsh and "_files" in zsh
    assert "--hidden" not in zsh and "hidden" not in fish
    assert "-n '__fish_seen_subcommand_from copy' -l how -x -a 'fast slow' -d 'it\\'s 100% safe: $HOME'" in fish
    assert "-n '__fish_seen_subcommand_from context; and not __fish_seen_subcommand_from use rm' -f -a 'use'" in fish
    assert "-n '__fish_seen_subcommand_from context; and __fish_seen_subcommand_from use' -l force" in fish


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["completion", "csh"])
    assert end.value.code == 2 and "invalid choice: 'csh' (choose from" in capsys.readouterr().err
