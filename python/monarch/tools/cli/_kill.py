"""Releases the hosts of a job, with all that runs there, and forgets them.

example: monarch kill  # the job of the active context
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys

HELP = "release a job's hosts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", nargs="?", metavar="CONTEXT", help="whose job; the active context's if left out")
    parser.add_argument(
        "--json",
        action="store_true",
        help="an object: context; apply_id and job, of what was ended; logs, folders that stay",
    )


def run(arguments: argparse.Namespace) -> int:
    from monarch.job import _contexts
    from monarch.job._trait import JobTrait
    from monarch.tools._log_files import Source, of_workers

    name = arguments.context or _contexts.current()
    if name not in _contexts.names():
        raise ValueError(f"there is no context {name!r}; there are: {', '.join(_contexts.names())}")
    files: list[Source] = []
    ended: dict[str, str] = {}

    def look(job: JobTrait) -> None:
        with contextlib.suppress(Exception):  # it may be of another version, which can be killed all the same
            ended.update(apply_id=str(job.apply_id), job=repr(job))
            files.extend(of_workers(job))

    was_saved = _contexts.kill(name, look)
    folders = sorted({os.path.dirname(source.path) for source in files})
    if arguments.json:
        of_job = {"apply_id": ended.get("apply_id"), "job": ended.get("job")}
        print(json.dumps({"context": name, **of_job, "logs": folders}))
    elif not was_saved:
        print(f"no job was saved in the context {name!r} of {os.getcwd()}", file=sys.stderr)
    elif files:
        where = " and ".join(folders)
        print(
            f"what its workers have printed stays in {where}: monarch logs --job {ended['apply_id'][:8]}",
            file=sys.stderr,
        )
    return 0
