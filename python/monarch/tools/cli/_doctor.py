"""Says what on this machine limits Monarch: for each thing OK, a note (slower, or missing) or a problem, and what
to do. Changes nothing, and needs no root. Exit status 1 if there is a problem.

example: monarch doctor && python train.py
"""

from __future__ import annotations

import argparse
import json

HELP = "say what on this machine limits Monarch"
_SHOWN = {"ok": "OK", "note": "note", "problem": "problem"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a list of objects: name, level, text, advice")


def run(arguments: argparse.Namespace) -> int:
    from monarch.tools._doctor import Machine, examine

    checks = examine(Machine())
    if arguments.json:
        print(json.dumps([check._asdict() for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            advice = f" -- {check.advice}" if check.advice else ""
            print(f"{_SHOWN[check.level]:8} {check.name:{width}}  {check.text}{advice}")
    return 1 if any(check.level == "problem" for check in checks) else 0
