"""A job whose hosts are this one."""

from __future__ import annotations

from collections.abc import Sequence

from monarch._notices import not_yet
from monarch.job._trait import JobState, JobTrait

__all__ = ["LocalJob"]


class LocalJob(JobTrait):
    """A job that needs nobody to allocate anything: each of its meshes is ``this_host()``."""

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        """``hosts``: names of meshes."""
        if isinstance(hosts, str) or not all(isinstance(name, str) for name in hosts):
            raise TypeError(f"hosts must be a sequence of names of meshes such as ['hosts'], but is {hosts!r}")
        self._names = list(hosts)

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise not_yet("LocalJob.apply(client_script=...)")

    def _state(self) -> JobState:
        from monarch.actor import this_host

        return JobState({name: this_host() for name in self._names})

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` is one with meshes of the same names."""
        return isinstance(spec, LocalJob) and spec._names == self._names

    def _kill(self) -> None:
        pass
