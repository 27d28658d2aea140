"""Releases the hosts of a job, with all that runs there, and forgets them.

example: monarch kill  # the job of the active context
"""

from __future__ import annotations

import argparse
import os
import sys

HELP = "release a job's hosts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", nargs="?", metavar="CONTEXT", help="whose job; the active context's if left out")


def run(arguments: argparse.Namespace) -> int:
    from monarch.job import _contexts
    from monarch.tools._log_files import find

    name = arguments.context or _contexts.current()
    if name not in _contexts.names():
        raise ValueError(f"there is no context {name!r}; there are: {', '.join(_contexts.names())}")
    if (apply_id := _contexts.kill(name)) is None:
        print(f"no job was saved in the context {name!r} of {os.getcwd()}", file=sys.stderr)
    elif apply_id and (files := find(job := apply_id[:8])):
        folders = " and ".join(sorted({os.path.dirname(source.path) for source in files}))
        print(f"what its workers have printed stays in {folders}: monarch logs --job {job}", file=sys.stderr)
    return 0
