"""Hosts that have an agent (``src/monarch/host/agent.h``), which starts and stops processes there for whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from monarch import _core
from monarch._calls.handles import Handle
from monarch._processes import launch
from monarch._runtime import deadline
from monarch._values.geometry import Point, Shape, Slice

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.proc_mesh import ProcMesh

T = TypeVar("T")

_KILLED_WITHIN = 1.0  # seconds that an agent has to say that what it has killed has ended
_ANSWER_LIMIT = 5.0  # seconds that an agent may take longer to say that processes have ended than they take to end


class Agents(Handle):
    """Who starts processes on hosts, for a ``HostMesh``; of equal hosts the same."""

    def __init__(self, nodes: list[int], job: str | None = None) -> None:
        self.nodes = nodes  # of the hosts, by base rank
        self._job = job

    @classmethod
    def _received(cls, nodes: list[int], job: str | None) -> Agents:
        agents = cls(nodes)
        agents._arrived_from(job)
        return agents

    def _reduce_for(self, job: str | None) -> Any:
        return Agents._received, (self.nodes, job)


class Asked:
    """Hosts that are asked for something. To futures and errors what an ``Endpoint`` is, for a call, and its mesh."""

    _first_rank = 0
    _name = "hosts"
    _is_of_processes = True

    def __init__(self, hosts: list[int], what: str) -> None:
        self._hosts, self._what = hosts, what
        self._mesh = self

    def __str__(self) -> str:
        return self._what

    def __len__(self) -> int:
        return len(self._hosts)

    def _gather(self, entries: list[Any]) -> bool:
        return True


def _asked(agents: Agents, view: Shape, what: str) -> Asked:
    agents._introduce(agents.nodes)
    return Asked([agents.nodes[rank] for rank in view.ranks()], f"hosts.{what}")


def are_there(agents: Agents, view: Shape) -> Future[bool]:
    """True when all of these hosts are ready for orders."""
    asked = _asked(agents, view, "initialized")
    return _core.ask_hosts(asked._hosts, asked)


def start_nodes(agents: Agents, view: Shape, common: launch.Common, wanted: list[launch.Wanted]) -> list[int]:
    """Starts processes, as many on each host, in rank order: all, or raises what the first said that could not."""
    return undisturbed(lambda: _start_nodes(agents, view, common, wanted))


def _start_nodes(agents: Agents, view: Shape, common: launch.Common, wanted: list[launch.Wanted]) -> list[int]:
    count = len(wanted) // len(view)
    starting = []
    for rank, base_rank in enumerate(view.ranks()):
        place = ", ".join(f"{label}={at}" for label, at in Point(rank, view.extent).items())
        one = Shape([], Slice(offset=base_rank, sizes=[], strides=[]))
        asked = _asked(agents, one, f"slice({place}).spawn_procs" if place else "spawn_procs")
        host = agents.nodes[base_rank]
        part = launch.order(common, wanted[rank * count : (rank + 1) * count], host, agents._job is not None)
        starting.append((host, _core.start_on_host(host, part, asked)))
    nodes: list[int] = []
    errors: list[BaseException] = []
    for host, started in starting:
        error = started.exception()
        if error is not None:
            errors.append(error)
            continue
        _core.note_hosted(host, started.get())
        nodes += started.get()
    if errors:
        stop_nodes(nodes, "their mesh could not be spawned", 0.0)
        raise errors[0]
    return nodes


def undisturbed(work: Callable[[], T]) -> T:
    """Runs what takes milliseconds: no deadline of the caller's counts, and a running event loop may wait for it."""
    asyncio: Any = sys.modules.get("_asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()
    token = deadline.current.set(None)
    try:
        if loop is not None:
            asyncio._set_running_loop(None)
        return work()
    finally:
        deadline.current.reset(token)
        if loop is not None:
            asyncio._set_running_loop(loop)


def stop_nodes(nodes: list[int], reason: str, limit: float) -> Future[None]:
    """Stops processes that hosts have started for this one, whatever has become of the hosts."""
    return _core.stop_on_hosts(nodes, reason, limit, _ANSWER_LIMIT)


def then_stop(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Stops ``procs`` when ``ending`` is done."""
    from monarch._calls.python_futures import on_thread

    return on_thread(lambda: (ending.get(), procs.stop().get())[1], "monarch-hosts-stop")


def then_end(procs: ProcMesh, hosts: Agents, view: Shape, ending: Future[None]) -> Future[None]:
    """As :func:`then_stop`, and what outlives its scripts on these hosts ends with them."""
    from monarch._calls.python_futures import on_thread

    def end() -> None:
        ending.get()
        asked = _asked(hosts, view, "shutdown")
        _core.ask_hosts(asked._hosts, asked, True).exception(_ANSWER_LIMIT)  # one that had ended before need not
        procs.stop().get()

    return on_thread(end, "monarch-hosts-end")


def then_kill(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Kills ``procs`` when ``ending`` is done, or takes too long."""
    from monarch._calls.python_futures import on_thread

    return on_thread(lambda: (ending.exception(_KILLED_WITHIN), procs._kill().get())[1], "monarch-hosts-kill")
