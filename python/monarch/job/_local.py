"""A job whose hosts are this one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence

from monarch.job import _ending, _saved
from monarch.job._attached import check_mesh_name
from monarch.job._detached import Detached
from monarch.job._trait import JobState, JobTrait

__all__ = ["LocalJob"]

_GRACE_S, _KILL_LIMIT_S = 1.0, 10.0


class LocalJob(JobTrait):
    """A job that needs nobody to allocate anything: each of its meshes is ``this_host()``.

    In batch mode, ``apply("script.py")``, that script runs beside this one and outlives it, with what it prints in
    ``.monarch/logs``, in a file named by the job's ``apply_id``. :meth:`kill` ends it, with all that it has started.
    """

    _is_shared = False
    _client: _ending.Process | None = None  # of batch mode

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        """``hosts``: names of meshes."""
        if isinstance(hosts, str) or not all(isinstance(name, str) for name in hosts):
            raise TypeError(f"hosts must be a sequence of names of meshes such as ['hosts'], but is {hosts!r}")
        self._names = list(hosts)
        for name in self._names:
            check_mesh_name(name)
        if not self._names or len(set(self._names)) < len(self._names):
            raise ValueError(f"hosts must be names of meshes, each of them once, such as ['hosts'], but is {hosts!r}")

    def __repr__(self) -> str:
        return f"LocalJob({self._names!r})"

    @property
    def process(self) -> subprocess.Popen[str] | None:
        """The client of batch mode, where this process has started it; else None."""
        process: subprocess.Popen[str] | None = self._here
        return process

    def _create(self, client_script: str | None) -> None:
        if client_script is None:
            return
        if not os.path.isfile(client_script):
            raise FileNotFoundError(errno.ENOENT, "the job's client is no script that is there", client_script)
        path = _saved.log_path(str(self._apply_id))
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._here = Detached(
                [sys.executable, client_script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
                env={**os.environ, "MONARCH_BATCH_JOB": "1", _ending.JOB_ID: str(self._apply_id)},
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(log)
        self._client = _ending.identify(self._here.pid) or _ending.Process(self._here.pid, 0)  # it has ended already

    def _state(self) -> JobState:
        from monarch.actor import this_host

        return JobState({name: this_host() for name in self._names})

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` is one with meshes of the same names, and the client of batch mode, if any, still runs."""
        runs = self._client is None or _ending.is_alive(self._client)
        return runs and isinstance(spec, LocalJob) and spec._names == self._names

    def _specification(self) -> list[str]:
        return self._names

    def _kill(self) -> None:
        if self._client is None:
            return
        left = _ending.end_all(f"{_ending.JOB_ID}={self._apply_id}", [self._client], _GRACE_S, _KILL_LIMIT_S)
        if left:
            raise RuntimeError(f"{self!r} cannot be killed: the processes {left} were sent SIGKILL and have not ended")
        if self._here is not None:
            self._here.wait()
        self._client = self._here = None
