"""Jobs for the script that runs within their allocation: batch mode."""

from __future__ import annotations

import copy
import os

from monarch.job._trait import JobState, JobTrait

__all__ = ["BatchJob"]


class BatchJob(JobTrait):
    """A job within whose allocation this script runs, which attaches to it by ``state()`` of the same specification.

    The allocation ends with the script, so ``kill()`` only lets go of what the script has on its hosts.
    """

    _is_within = True

    def __init__(self, job: JobTrait) -> None:
        """``job``: has been applied, or is about to be; this keeps a copy."""
        self._job = copy.copy(job)
        self._job._here = self._job._saved_in = None
        self._job._running = self._job
        self._apply_id, self._running = job._apply_id, self

    def __repr__(self) -> str:
        return f"BatchJob({self._job!r})"

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this process runs within a batch job, and ``spec`` wants what it has."""
        return os.environ.get("MONARCH_BATCH_JOB") == "1" and self._job.can_run(spec)

    def _specification(self) -> object:
        return self._job._specification()

    def _create(self, client_script: str | None) -> None:
        raise RuntimeError("a BatchJob has been allocated already; apply the job that it wraps")

    def _is_running(self) -> bool:
        return os.environ.get("MONARCH_BATCH_JOB") == "1"

    def _state(self) -> JobState:
        return self._job._state()

    def _kill(self) -> None:
        self._job._kill()
