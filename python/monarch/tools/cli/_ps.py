"""Shows the processes of the saved job on this machine: its hosts' daemons, and all that they have started.

example: monarch ps --all
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tools._processes import Row

HELP = "show the processes of the job on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all of Monarch that this user runs here, by job")
    parser.add_argument(
        "--json", action="store_true",
        help="a list of objects: job, host, pid, parent, state, age_s, rss_bytes, cpu_s, what, command",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from monarch.tools._processes import table

    rows = find(arguments.all)
    print(json.dumps([row.as_json() for row in rows], indent=2) if arguments.json else "\n".join(table(rows)))
    return 0


def find(of_all: bool) -> list[Row]:
    """What is shown. ``RuntimeError`` if there is no job, or one that has nothing on this machine."""
    from monarch.tools import _processes
    from monarch.tools._active import active_job, hosts_of

    if of_all:
        return _processes.of_user()
    job = active_job()
    rows = _processes.of_job(job.apply_id, hosts_of(job))
    if not rows:
        raise RuntimeError(f"{job!r} has no processes on this machine; `monarch ps --all` shows those of other jobs")
    return rows
