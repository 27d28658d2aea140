"""Shows what the saved job's processes have written to files on this machine: what its hosts' daemons say, what
adopted actors and the client of batch mode print, and what workers print, if enable_file_capture is set.

examples:
  monarch logs -f --mesh trainers --host 1
  monarch logs --rank 3 --since 5m --grep 'loss|nan'
  monarch logs -t --last     # of the last run, with the time of each line
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from datetime import datetime, timezone
from time import time as now
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tools._log_files import Source

HELP = "show the log files of the job on this machine"
_TIME_WIDTH = len("2026-01-31T12:00:00.123Z")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written, until the job ends")
    parser.add_argument("--mesh", metavar="NAME", help="of these processes, or of these hosts, only")
    parser.add_argument("--host", type=_number, metavar="N", help="of this host of a mesh of the job, from 0, only")
    parser.add_argument("--rank", type=_number, metavar="N", help="of this rank of a mesh of processes only")
    parser.add_argument(
        "--since", type=_ago, metavar="TIME",
        help="30s, 5m, 2h, 1d: lines that were printed since; where a file has no times, those that do not begin with "
        "an earlier one, if it was written to since",
    )  # fmt: skip
    parser.add_argument("--last", action="store_true", help="of workers of the last run of a script only")
    parser.add_argument("--grep", type=_pattern, metavar="RE", help="lines in which this is found (Python's re)")
    parser.add_argument(
        "-t", "--times", action="store_true", help="in front of each line its time, in UTC, if that is known"
    )
    parser.add_argument(
        "--json", action="store_true", help="an object a line: kind, hosts, host, mesh, rank, run, file, time, line"
    )
    parser.add_argument(
        "--job", type=_job_id, metavar="ID",
        help="what workers of a job have printed that is not there any more: as `monarch kill` says, the beginning of "
        "its apply_id",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from monarch.tools._active import active_job
    from monarch.tools._log_files import Wanted, find, folders_of, follow, nothing_in, nothing_of

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # workers may print what this terminal cannot
    job = arguments.job or active_job()
    if isinstance(job, str) and not find(job):
        raise RuntimeError(f"there is no file of workers of a job {job} in {' or '.join(folders_of(None))}")
    since = None if arguments.since is None else now() - arguments.since[1]
    wanted = Wanted(arguments.mesh, arguments.host, arguments.rank, since, arguments.grep, arguments.last)
    if (why := nothing_of(job, wanted)) is not None:
        if not arguments.follow:
            raise RuntimeError(why)
        print(f"monarch logs: {why}; waiting for some", file=sys.stderr)
    source, head, of_run = None, "", None
    for line in follow(job, wanted, arguments.follow):
        if line is None:
            sys.stdout.flush()
            continue
        if line.source is not source:  # many lines have the same
            source = line.source
            head = _object_before_time(source) if arguments.json else f"[{source}] "
            if source.run is not None and source.run != of_run:
                if of_run is not None and not arguments.json:
                    sys.stdout.write(f"-- run {_run_text(source.run)} --\n")
                of_run = source.run
        if arguments.json:
            sys.stdout.write(f'{head}{json.dumps(line.time)}, "line": {json.dumps(line.text)}}}\n')
        else:
            time = f"{line.time or '-':{_TIME_WIDTH}} " if arguments.times else ""
            sys.stdout.write(f"{time}{head}{line.text}\n")
    if source is None:
        print(f"monarch logs: {nothing_in(job, _asked(arguments))}", file=sys.stderr)
    return 0


def _asked(arguments: argparse.Namespace) -> str:
    """The options that say which lines are wanted, as they were given."""
    since, pattern = arguments.since, arguments.grep
    given = {
        "--mesh": arguments.mesh, "--host": arguments.host, "--rank": arguments.rank,
        "--since": None if since is None else since[0], "--grep": None if pattern is None else pattern.pattern,
    }  # fmt: skip
    words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    return shlex.join([*words, *(["--last"] if arguments.last else [])])


def _run_text(run: str) -> str:
    """Of a run of a script, when it began and its pid; of files of versions before, the pid."""
    if (found := re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-(\d+)", run)) is None:
        return run
    year, month, day, hour, minute, second, pid = found.groups()
    return f"of {year}-{month}-{day} {hour}:{minute}:{second} UTC, pid {pid}"


def _object_before_time(source: Source) -> str:
    """What stands before the time of a line of it, as JSON."""
    fields = {
        "kind": source.kind, "hosts": source.hosts, "host": source.host, "mesh": source.mesh, "rank": source.rank,
        "run": source.run, "file": source.path, "time": None,
    }  # fmt: skip
    return json.dumps(fields)[: -len("null}")]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _job_id(text: str) -> str:
    if re.fullmatch("[0-9a-f]{8}(-[0-9a-f-]*)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not the beginning of an apply_id, of 8 characters or more")
    return text[:8]


def _ago(text: str) -> tuple[str, float]:
    """As it was given, and in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 30s: a positive number and ms, s, m, h or d")
    seconds = float(found[1]) * _UNITS_S[found[2]]
    try:
        datetime.fromtimestamp(now() - seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is longer ago than there are dates") from None
    return text, seconds


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error
