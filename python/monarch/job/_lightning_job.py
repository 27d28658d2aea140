"""A job whose hosts are the machines of one of Lightning AI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monarch._meshes.workers import attach_to_workers
from monarch.job._attached import Attached, check_mesh_name
from monarch.job._trait import JobState, JobTrait

__all__ = ["LightningJob"]

_ALIVE = ("pending", "running")
_GRACE_S = 1.0  # for what this script has spawned there


class LightningJob(JobTrait):
    """Machines of Lightning AI, of one multi-machine job there: the mesh ``hosts``.

    Each runs ``monarch worker``. ``lightning_sdk`` does not say how machines are reached, so a ``resolver`` does: from
    a file that they write on the teamspace's drive, say. Machines and script need the same token:
    ``MONARCH_TOKEN_FILE`` in ``env``, and here, names a file that both see.

    It has been tried with a stand-in for ``lightning_sdk`` only: no cloud of Lightning was seen.
    """

    def __init__(
        self, name: str, num_machines: int, machine: Any, *, resolver: Callable[[Any], list[str]], mesh: str = "hosts",
        port: int = 26600, env: Mapping[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """
        Args:
            name: of the job, in its teamspace.
            num_machines: how many.
            machine: a ``lightning_sdk.Machine``, or the name of one, such as ``"A10G"``.
            resolver: called by ``state()`` with the ``lightning_sdk.Job``: returns when the machines can be reached,
                with the address of each, ``tcp://HOST:PORT``. It is saved with the job, and so a function of a module.
            mesh: the name of the mesh.
            port: where each machine listens.
            env: the environment of what runs there.
            options: as ``lightning_sdk.Job.run`` takes them: ``studio``, ``image``, ``teamspace``, ``command`` in
                place of ``monarch worker --bind tcp://*:PORT``, ...
        """
        check_mesh_name(mesh)
        if isinstance(num_machines, bool) or not isinstance(num_machines, int) or num_machines < 1:
            raise ValueError(f"num_machines is {num_machines!r}: expected a number above 0")
        if not callable(resolver):
            raise TypeError(f"resolver must be a function that returns addresses of machines, but is {resolver!r}")
        self._name, self._mesh, self._resolver = name, mesh, resolver
        self._wanted = {
            "num_machines": num_machines, "machine": machine, "command": f"monarch worker --bind tcp://*:{port}",
            "env": dict(env or {}), **options,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"LightningJob({self._name!r}, {self._wanted['num_machines']}, {self._wanted['machine']!r})"

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` wants the same, and the job there waits or runs."""
        if not isinstance(spec, LightningJob):
            return False
        if (self._name, self._mesh, self._wanted) != (spec._name, spec._mesh, spec._wanted):
            return False
        status = self._job().status
        return str(getattr(status, "value", status)).lower() in _ALIVE

    def _specification(self) -> Any:
        return self._name, self._mesh, self._wanted

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("LightningJob cannot run batch-mode scripts")
        sdk, wanted = _sdk(), dict(self._wanted)
        if isinstance(wanted["machine"], str):
            wanted["machine"] = sdk.Machine.from_str(wanted["machine"])
        self._here = _Here(sdk.Job.run(name=self._name, **wanted))

    def _job(self) -> Any:
        if self._here is None:  # it was loaded
            where = {"teamspace": self._wanted["teamspace"]} if "teamspace" in self._wanted else {}
            self._here = _Here(_sdk().Job(name=self._name, **where))
        return self._here.job

    def _state(self) -> JobState:
        job, count = self._job(), self._wanted["num_machines"]
        hosts = self._here.hosts
        if self._mesh not in hosts or hosts[self._mesh]._spawned.ended:
            workers = list(self._resolver(job))
            if len(workers) != count:
                raise RuntimeError(f"the resolver of {self!r} must return {count} addresses, but returned {workers!r}")
            hosts[self._mesh] = attach_to_workers(workers=workers, name=self._mesh)
            hosts[self._mesh]._in_job = (str(self._apply_id), self._mesh)
        return JobState(hosts)

    def _kill(self) -> None:
        job = self._job()
        self._here.let_go(_GRACE_S)
        job.stop()
        self._here = None


class _Here(Attached):
    """What belongs to this process."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.job = job


def _sdk() -> Any:
    try:
        import lightning_sdk
    except ImportError as error:
        raise ImportError(f"LightningJob needs lightning_sdk ({error}): pip install 'monarch-cpp[lightning]'") from None
    return lightning_sdk
