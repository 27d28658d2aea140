"""The command ``monarch``, also ``python -m monarch``.

Each of its commands is a module of this package that has ``HELP``, one line; a docstring that ends with
examples; ``add_arguments``, which is given the
command's parser; and ``run``, which is given the arguments, and returns the exit status. Only the one that is asked for
is run, so only what is in ``run`` may import much.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence

import monarch

__all__ = ["main"]

_EXAMPLE = """example: the hosts of `job` in cluster.py, for as many runs as you like
  monarch apply cluster.job
  python train.py
  monarch kill"""
_COMMANDS = ("apply", "exec", "shell", "kill", "context", "ps", "top", "logs", "worker", "doctor", "completion")


class _Help(argparse.HelpFormatter):
    """Examples are shown as they are, each in its line; what an option takes, behind the last of its names."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        takes = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {takes}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


class _Version(argparse.Action):
    """Looks the version up when somebody asks for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        try:
            print("monarch", metadata.version("monarch-cpp"))
        except metadata.PackageNotFoundError:
            print("monarch", monarch.__version__, "(a checkout)")  # nothing is installed
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``monarch`` with these arguments; None: those of the process. Returns the exit status.

    Wrong usage ends the process (``SystemExit``) with status 2, after what is right. A failure is one line on stderr,
    and status 1.
    """
    _open_missing()
    given = sys.argv[1:] if argv is None else argv
    arguments, unknown = command_parser(given[:1]).parse_known_args(given)
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.command is None:
        arguments.parser.error("the following arguments are required: COMMAND")
    try:
        status = int(arguments.run(arguments))
        if argv is None and arguments.command == "exec":
            gc.freeze()  # or the interpreter would look through all that there is at its end, for 20 ms
        if sys.stdout is not None:  # the process has been given one
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # who reads has enough; what is left is not written at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 130
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"monarch {arguments.command}: {error}", file=sys.stderr)
        return 1


def _open_missing() -> None:
    """Of stdin, stdout and stderr those that this process has not been given: they would become something else's."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)  # the lowest that is free
            os.set_inheritable(fd, True)  # as they are
            if getattr(sys, name) is None:
                stream = open(fd, mode, closefd=False)  # noqa: SIM115  # for as long as the process lives
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)


def command_parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Of ``monarch``, with all its commands; with the one that is ``given`` alone, as each takes 2 ms."""
    parser = argparse.ArgumentParser(
        prog="monarch", description="Hosts for programs that one script drives.", allow_abbrev=False,
        epilog=_EXAMPLE, formatter_class=_Help,
    )  # fmt: skip
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is, and end")
    parser.set_defaults(parser=parser)
    # Not required here, where that would hide options that are unknown.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in [name for name in given if name in _COMMANDS] or _COMMANDS:
        module = importlib.import_module(f"monarch.tools.cli._{name}")
        about, _, examples = (module.__doc__ or "").partition("\nexample")
        command = commands.add_parser(
            name, help=module.HELP, description=about, epilog=f"example{examples.rstrip()}", formatter_class=_Help,
            allow_abbrev=False,
        )  # fmt: skip
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser
