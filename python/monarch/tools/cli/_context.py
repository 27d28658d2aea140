"""Jobs of this directory by name, one of which is the active one: the one that other commands, and scripts that say
nothing else, are about.

example: monarch context create big && monarch apply cluster.big
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.job import JobTrait

HELP = "have several jobs in one directory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for action, what in (
        ("create", "make one, and the active one"),
        ("use", "make it the active one"),
        ("rm", "kill its job, and forget it"),
    ):
        actions.add_parser(action, help=what, description=what).add_argument(
            "name", metavar="NAME", help="of the context"
        )
    listing = actions.add_parser("ls", help="list them", description="List them; the active one has a star.")
    listing.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action is None:
        arguments.parser.error("the following arguments are required: ACTION")
    from monarch.job import _contexts

    if arguments.action == "ls":
        return _list(arguments.json)
    if arguments.action == "rm":
        _contexts.remove(arguments.name, lambda job: _tell_of_end(arguments.name, job))
    else:
        {"create": _contexts.create, "use": _contexts.use}[arguments.action](arguments.name)
    return 0


def _tell_of_end(name: str, job: JobTrait) -> None:
    print(f"monarch context: the job of {name!r} is killed: {job!r}, apply_id {job.apply_id}", file=sys.stderr)


def _list(as_json: bool) -> int:
    from monarch.job import _contexts

    active = _contexts.current()
    found: list[dict[str, object]] = []
    for name in _contexts.names():
        saved, sha256 = _contexts.summary(name)
        job = _contexts.spec_summary(name)
        found.append({"name": name, "active": name == active, "job": job, "saved": saved, "specification": sha256})
    if as_json:
        print(json.dumps(found))
    else:
        for context in found:
            line = f"{context['name']}  {context['job'] or ''}  {context['saved'] or 'not applied'}"
            print(f"{'*' if context['active'] else ' '} {line}".rstrip())
    return 0
