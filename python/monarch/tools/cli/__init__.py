"""The command ``monarch``, also ``python -m monarch``.

Each of its commands is a module of this package that has ``HELP``, one line; ``add_arguments``, which is given the
command's parser; and ``run``, which is given the arguments, and returns the exit status. Only the one that is asked for
is run, so only what is in ``run`` may import much.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = ("worker",)


class _Version(argparse.Action):
    """Looks the version up when somebody asks for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        try:
            print("monarch", metadata.version("monarch-cpp"))
        except metadata.PackageNotFoundError:
            print("monarch, from a checkout")  # nothing is installed
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``monarch`` with these arguments; None: those of the process. Returns the exit status.

    Wrong usage ends the process (``SystemExit``) with status 2, after what is right. A failure is one line on stderr,
    and status 1.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        print(f"monarch {arguments.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="monarch", description="Hosts for programs that one script drives.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is, and end")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        module = importlib.import_module(f"monarch.tools.cli._{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
