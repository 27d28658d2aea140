"""Prints a script that completes the commands and options of `monarch` in a shell. For fish: monarch completion fish |
source.

example: source <(monarch completion bash)
"""

from __future__ import annotations

import argparse

HELP = "print a script that completes commands in bash, zsh or fish"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def run(arguments: argparse.Namespace) -> int:
    from monarch.tools import _completion
    from monarch.tools.cli import command_parser

    print(getattr(_completion, arguments.shell)(command_parser()), end="")
    return 0
