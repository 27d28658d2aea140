"""Waiting for a job of Slurm, and what is said meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from monarch import _core
from monarch.job import _slurm_commands as slurm

POLL_S = 2.0  # at most, between two looks
_START_LIMIT_S = 300.0  # for workers, once the job runs, to say where they are


class JobEnded(RuntimeError):
    """It has ended, or is not going to serve."""


def wait_until_it_runs(
    job_id: str, what: str, is_ready: Callable[[slurm.Found], bool], limit_s: float | None, before: slurm.Found | None
) -> slurm.Found:
    """Returns the job when it runs and is ready; says on stderr why it does not, whenever that changes.

    ``JobEnded`` if it has ended, or its workers do not come; ``RuntimeError`` when the limit is over.

    Args:
        job_id: in Slurm's queue, or out of it already.
        what: the job, for what is said.
        is_ready: whether all of its workers are known. It may raise.
        limit_s: seconds; None: there is none, but for workers of a job that runs.
        before: what it was when it ran before; returned if Slurm does not answer now.
    """
    began, running_since, pause, said, words = time.monotonic(), None, 0.1, "", ""
    while True:
        try:
            found = slurm.look(job_id)
        except slurm.Unreachable as error:
            if before is not None:
                return before
            words = f"not heard of: {error}"
        else:
            words = found.words
            if found.is_over:
                if found.nodes:
                    is_ready(found)  # raises if that is why
                raise JobEnded(f"{what} has ended: it is {words}")
            if found.runs and is_ready(found):
                if said:
                    _core.log_line(f"{what} runs on {', '.join(found.nodes)}")
                return found
            running_since = (running_since or time.monotonic()) if found.runs else None
        now = time.monotonic()
        if running_since is not None and now > running_since + _START_LIMIT_S:
            raise JobEnded(f"the workers of {what} have not started in {_START_LIMIT_S:g} s")
        if limit_s is not None and now > began + limit_s:
            raise RuntimeError(
                f"{what} has not started in {limit_s:g} s (job_start_timeout), and is cancelled: it is {words}"
            )
        if words != said and running_since is None:
            said = words
            _core.log_line(f"{what} is {words}")
        time.sleep(pause)
        pause = min(2 * pause, POLL_S)
