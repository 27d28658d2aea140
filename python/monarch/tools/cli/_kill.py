"""Releases the hosts of a job, with all that runs there, and forgets them.

example: monarch kill  # the job of the active context
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

HELP = "release a job's hosts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", nargs="?", metavar="CONTEXT", help="whose job; the active context's if left out")


def run(arguments: argparse.Namespace) -> int:
    from monarch.job import _contexts
    from monarch.job._trait import JobTrait
    from monarch.tools._log_files import Source, of_workers

    name = arguments.context or _contexts.current()
    if name not in _contexts.names():
        raise ValueError(f"there is no context {name!r}; there are: {', '.join(_contexts.names())}")
    files: list[Source] = []
    ids: list[str] = []

    def look(job: JobTrait) -> None:
        with contextlib.suppress(Exception):  # it may be of another version, which can be killed all the same
            files.extend(of_workers(job))
            ids.append(str(job.apply_id)[:8])

    if not _contexts.kill(name, look):
        print(f"no job was saved in the context {name!r} of {os.getcwd()}", file=sys.stderr)
    elif files:
        folders = " and ".join(sorted({os.path.dirname(source.path) for source in files}))
        print(f"what its workers have printed stays in {folders}: monarch logs --job {ids[0]}", file=sys.stderr)
    return 0
