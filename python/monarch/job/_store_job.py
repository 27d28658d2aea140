"""A job over the hosts of a run of torchrun, whose processes find each other through a store of torch."""

from __future__ import annotations

import collections
import json
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monarch import _core
from monarch._meshes.workers import Daemon, attach_to_workers
from monarch._notices import deprecated
from monarch.job._attached import Attached, check_mesh_name
from monarch.job._trait import DEFAULT_JOB_PATH, JobState, JobTrait

if TYPE_CHECKING:
    from monarch._meshes.host_mesh import HostMesh

__all__ = ["StoreJob", "host_mesh_from_store"]

_GRACE_S = 1.0  # for what this script has spawned there
_TRANSPORTS = ("ipc", "tcp")
_VARIABLES = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE",
              "local_world_size": "LOCAL_WORLD_SIZE"}  # fmt: skip


class _Store(Protocol):
    """What is needed of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str) -> bytes | str:
        """Waits until there is something."""


class _Place(NamedTuple):
    """Where this process stands in its run."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @property
    def node(self) -> int:
        return self.rank // self.local_world_size

    @property
    def nodes(self) -> int:
        return self.world_size // self.local_world_size


class StoreJob(JobTrait):
    """The machines of a run of torchrun as one mesh of hosts. :meth:`from_store` makes it, in the run's processes.

    Each host ends with the process that serves it, however that ends. The job neither allocates nor releases any:
    :meth:`kill` ends what this script has started there, and the hosts are left to the run. The next :meth:`state` is
    attached to them again.
    """

    def __init__(self, workers: list[str], name: str = "monarch_worker") -> None:
        """
        Args:
            workers: addresses of hosts, as ``attach_to_workers`` takes them.
            name: of their mesh.
        """
        check_mesh_name(name)
        self._workers = list(workers)
        self._name = name

    @classmethod
    def from_store(
        cls, store: _Store, *, monarch_port: int = 0, name: str = "monarch_worker", transport: str = "ipc",
        rank: int | None = None, local_rank: int | None = None, world_size: int | None = None,
        local_world_size: int | None = None,
    ) -> StoreJob | None:  # fmt: skip
        """Called by every process of a run of torchrun: the job in rank 0, when all hosts are there; None in others.

        Local rank 0 of each node becomes a host, which has its environment. Only addresses go through the store, and
        who attaches must know the token of the hosts, which is in a file: ``MONARCH_TOKEN_FILE``, the same on all
        machines, or without it one of this user that is made on each machine, which does for one machine alone.

        Each call of a process is one of its own, and it makes as many with this name as the others.

        Args:
            store: has ``set`` and ``get``, which waits, such as ``torch.distributed.TCPStore``.
            monarch_port: with ``"tcp"`` where each host listens; 0: at any port that is free.
            name: the name of the mesh, an attribute of ``state()``.
            transport: ``"ipc"``, where all nodes are this machine, or ``"tcp"``, always with TLS.
            rank: None, as all of these: what torchrun says, ``RANK`` in the environment.
            local_rank: ``LOCAL_RANK``.
            world_size: ``WORLD_SIZE``.
            local_world_size: ``LOCAL_WORLD_SIZE``, the same for every node.

        Raises:
            RuntimeError: the environment does not say the ranks; a host cannot start, which is raised there and in
                rank 0; with ``"ipc"``, in rank 0, nodes are on several machines.
            ValueError: ranks that do not fit, another transport, a bad port or name.
        """
        if not callable(getattr(store, "set", None)) or not callable(getattr(store, "get", None)):
            raise TypeError(f"store must have set() and get(), as torch.distributed.TCPStore has, but is {store!r}")
        check_mesh_name(name)
        url = _url(transport, monarch_port)
        place = _place(rank, local_rank, world_size, local_world_size)
        prefix = _prefix(name)
        if place.local_rank == 0:
            _serve(url, store, f"{prefix}/{place.node}")
        if place.rank != 0:
            return None
        job = cls(_collect(store, prefix, place.nodes, transport), name)
        job.apply()
        return job

    def __repr__(self) -> str:
        return f"StoreJob({self._workers!r}, {self._name!r})"

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH, *, exclusive: bool = False) -> JobState:
        """Its hosts, attached to. The job is neither looked up nor saved: hosts end with their run.

        ``cached_path``, ``exclusive``: have no meaning.
        """
        return super().state(cached_path=None)

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` is one with the same hosts, under the same name."""
        return isinstance(spec, StoreJob) and (self._workers, self._name) == (spec._workers, spec._name)

    def _specification(self) -> Any:
        return [str(worker) for worker in self._workers], self._name

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("StoreJob cannot run batch-mode scripts: its hosts are those of a run that has a script")

    def _state(self) -> JobState:
        here: Attached = self._here or Attached()
        self._here = here
        if self._name not in here.hosts or here.hosts[self._name]._spawned.ended:
            here.hosts[self._name] = attach_to_workers(workers=self._workers, name=self._name)
        return JobState(here.hosts)

    def _kill(self) -> None:
        if self._here is not None:
            self._here.let_go(_GRACE_S)
        self._here = None


def host_mesh_from_store(store: _Store, **options: Any) -> HostMesh | None:
    """Old spelling of ``StoreJob.from_store(store, ...).state()``, and the mesh there. ``options``: as there."""
    deprecated("host_mesh_from_store() is an old spelling of monarch.job.spmd.StoreJob.from_store()")
    job = StoreJob.from_store(store, **options)
    return None if job is None else getattr(job.state(), job._name)


# ---- What is asked for ----


def _url(transport: str, port: int) -> str:
    """Where each host listens. Who may not attach does not get past its token, on whatever interface."""
    if transport not in _TRANSPORTS:
        raise ValueError(f"transport is {transport!r}: expected 'ipc', within one machine, or 'tcp'")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 2**16:
        raise ValueError(f"monarch_port is {port!r}: expected a number from 0, any that is free, to 65535")
    return f"tcp://*:{port}" if transport == "tcp" else f"ipc://@monarch-store-{os.getpid()}-{os.urandom(8).hex()}"


def _place(*given: int | None) -> _Place:
    missing = [name for value, name in zip(given, _VARIABLES.values()) if value is None and name not in os.environ]
    if missing:
        raise RuntimeError(
            f"StoreJob.from_store() is for processes of torchrun, whose environment has {', '.join(missing)}; here, "
            f"pass {', '.join(name for name, variable in _VARIABLES.items() if variable in missing)}"
        )
    numbers = []
    for value, name in zip(given, _VARIABLES.values()):
        try:
            numbers.append(int(os.environ[name] if value is None else value))
        except ValueError:
            raise RuntimeError(f"{name} is {os.environ.get(name)!r} in the environment: expected a number") from None
    place = _Place(*numbers)
    fits = place.local_world_size > 0 and place.world_size % place.local_world_size == 0
    if not fits or not 0 <= place.rank < place.world_size or place.rank % place.local_world_size != place.local_rank:
        raise ValueError(
            f"these ranks do not fit each other: {place._asdict()}; each node must have local_world_size of them, one "
            "after the other"
        )
    return place


_rounds: collections.Counter[str] = collections.Counter()


def _prefix(name: str) -> str:
    """Of keys that no other call has used, nor one before torchrun has started the processes again."""
    _rounds[name] += 1
    return f"monarch/{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_rounds[name]}"


# ---- Hosts ----

_served: list[Daemon] = []  # they live as long as this process


def _serve(url: str, store: _Store, key: str) -> None:
    """Makes this process a host, and says so."""
    try:
        daemon = Daemon(None, None, url)
    except Exception as error:  # rank 0 would wait for it
        store.set(key, json.dumps({"error": str(error)}))
        raise RuntimeError(f"this process cannot be a host: {error}") from error
    _served.append(daemon)
    threading.Thread(target=daemon.wait, name="monarch-host", daemon=True).start()
    store.set(key, json.dumps({"address": daemon.address, "machine": _core.machine_id()}))


def _collect(store: _Store, prefix: str, nodes: int, transport: str) -> list[str]:
    """The addresses of all hosts, when they are there."""
    found = [json.loads(store.get(f"{prefix}/{node}")) for node in range(nodes)]
    for node, said in enumerate(found):
        if "error" in said:
            raise RuntimeError(f"the host of node {node} cannot start: {said['error']}")
        if transport == "ipc" and said["machine"] != _core.machine_id():
            raise RuntimeError(
                f"node {node} is another machine than this one, where 'ipc' does not lead: pass transport='tcp', and "
                "set MONARCH_TOKEN_FILE to a file that is the same on all machines"
            )
    return [said["address"] for said in found]
