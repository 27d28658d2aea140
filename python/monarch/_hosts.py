"""Hosts that have an agent: an actor in a process there, which starts processes for whoever asks.

So far such hosts are stand-ins on this machine, processes of their own that ``hosts_from_config`` makes. What spawns
and what stops, ``start_nodes`` and ``stop_nodes``, knows nothing of that.
"""

from __future__ import annotations

from _thread import start_new_thread

from monarch import _context, _core, _deadline, _host_mesh, _mesh, _runtime
from monarch._actor import Actor
from monarch._endpoint import endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from monarch._future import Future
    from monarch._host_mesh import HostMesh
    from monarch._mesh import ProcMesh
    from monarch._port import Port

    T = TypeVar("T")

__all__ = ["hosts_from_config"]

_COUNT = 2
_ANSWER_LIMIT = 5.0  # seconds that an agent may take longer to say that processes have ended than they take to end


class HostAgent(Actor):
    """Starts and stops processes on its host for others, which own them."""

    @endpoint
    def answer(self) -> None:
        """Says that this host is there."""

    @endpoint
    def start(self, requests: list[Any], owner: int, mesh: int) -> list[int]:
        """Starts this host's part of ``requests``, which are for all the hosts that were asked; returns their nodes."""
        here = _context.current_rank()
        count = len(requests) // here.extent.nelements
        return _host_mesh.start_here(requests[here.rank * count : (here.rank + 1) * count], owner, mesh)

    @endpoint(explicit_response_port=True)
    def stop_nodes(self, port: Port[None], nodes: list[int], reason: str, limit: float) -> None:
        """Stops those of ``nodes`` that are here, and answers when they have ended. Others may ask meanwhile."""
        ending = _core.stop_procs(nodes, reason, limit)

        def answer() -> None:
            port.send(ending.get())

        try:
            start_new_thread(answer, ())
        except RuntimeError:  # there is none just now: others wait, which is better than an agent that has failed
            answer()


def agent(address: tuple[int, int]) -> Any:
    """The agent at that address, as a mesh without dimensions."""
    return _mesh.ActorMesh([address], _mesh._whole([], []), HostAgent, "agent", "<root>")


def start_nodes(agents: Any, requests: list[tuple[Any, ...]]) -> list[int]:
    """Starts processes on several hosts; all, or raises what the first host that could not start its part said."""
    import os

    mesh = int.from_bytes(os.urandom(8), "little") | 1
    call = agents.start.options(partial=True).call
    parts = _undisturbed(lambda: call(requests, _core.node_id(), mesh).get().values())
    started = [part for part in parts if not isinstance(part, Exception)]
    nodes = [node for part in started for node in part]
    if len(started) < len(parts):
        stop_nodes(agents, nodes, "their mesh could not be spawned", 0.0)
        raise next(part for part in parts if isinstance(part, Exception))
    members = agents._key()[0]
    for (host, _), part in zip(members, parts):
        _core.note_hosted(host, part)
    return nodes


def _undisturbed(work: Callable[[], T]) -> T:
    """Runs what takes milliseconds: no deadline of the caller's counts, and a running event loop may wait for it."""
    import sys

    asyncio: Any = sys.modules.get("_asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()
    token = _deadline.current.set(None)
    try:
        if loop is not None:
            asyncio._set_running_loop(None)
        return work()
    finally:
        _deadline.current.reset(token)
        if loop is not None:
            asyncio._set_running_loop(loop)


def stop_nodes(agents: Any, nodes: list[int], reason: str, limit: float) -> Future[None]:
    """Stops processes on several hosts, whatever has become of the hosts."""
    agents._gather = lambda entries: None
    call = agents.stop_nodes.options(partial=True, deadline=limit + _ANSWER_LIMIT).call
    ending: Future[None] = _undisturbed(lambda: call(nodes, reason, limit))
    _core.release(nodes, reason)
    return ending


def then_stop(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Stops ``procs`` when ``ending`` is done."""
    from monarch._task_future import on_thread

    return on_thread(lambda: (ending.get(), procs.stop().get())[1], "monarch-hosts-stop")


def hosts_from_config(name: str) -> HostMesh:
    """Two hosts, along the dimension ``hosts``: a stand-in for a configured cluster, on this machine.

    Each is a process, which starts those that are spawned on it; when it dies, they do. Programs can be tried for
    several hosts: shapes, ranks, slices, ``this_host()`` in actors. The caller owns them: ``shutdown()`` of what this
    returns ends them, and so does the end of the process that called. ``name`` is for reports.
    """
    host = _host_mesh.this_host()
    procs = _host_mesh.start_mesh(host, {"hosts": _COUNT}, None, name)
    hosts = _host_mesh.HostMesh(procs._view, _host_mesh._Spawned(), True, _runtime.default_python)
    hosts._own_procs, hosts._agents = procs, procs.spawn("agent", HostAgent)  # type: ignore[assignment]
    return hosts
