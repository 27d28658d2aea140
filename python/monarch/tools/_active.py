"""The job that was saved in the working directory, for commands that look at it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monarch.job import JobTrait


class Host(NamedTuple):
    """One of a job's hosts on this machine."""

    mesh: str
    number: int  # in its mesh
    pid: int  # of its daemon
    started: int  # as _ending.Process has it
    log: str  # what its daemon and the processes between say

    def __str__(self) -> str:
        return f"{self.mesh}[{self.number}]"


def saved_job() -> JobTrait:
    """What was saved, and applied. ``RuntimeError`` if nothing was, or if it cannot be read."""
    from monarch.job import DEFAULT_JOB_PATH
    from monarch.job._trait import load_unnamed

    try:
        job = load_unnamed(DEFAULT_JOB_PATH)
    except FileNotFoundError:
        job = None
    except OSError:
        raise
    except Exception as error:  # unpickling raises whatever the saved classes do
        raise RuntimeError(
            f"{DEFAULT_JOB_PATH} cannot be read as a saved job: {type(error).__name__}: {error}"
        ) from error
    if job is None or job._running is None:
        raise RuntimeError(
            "no active job was found in this context; run 'monarch apply' first, or go where that was run: this is "
            + os.getcwd()
        )
    return job


def active_job() -> JobTrait:
    """What runs for it. Errors as there."""
    running = saved_job()._running
    assert running is not None
    return running


def hosts_of(job: JobTrait) -> list[Host]:
    """Those whose daemons a ProcessJob has started on this machine, since its start; of other jobs none are known."""
    from monarch.job import ProcessJob
    from monarch.job._process_job import is_here, worker_log

    if not isinstance(job, ProcessJob) or (run := job._run) is None or not is_here(run):
        return []
    found, places = [], [(mesh, number) for mesh, count in run.meshes.items() for number in range(count)]
    for index, ((mesh, number), worker) in enumerate(zip(places, run.workers)):
        found.append(Host(mesh, number, worker.pid, worker.started, worker_log(run.folder, index)))
    return found
