"""Hosts that have an agent: an actor in a process there, which starts and stops processes for whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._meshes.actor_mesh import ActorMesh
from monarch._meshes.mesh import whole
from monarch._processes import launch
from monarch._runtime import deadline
from monarch._runtime.context import current_rank

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.proc_mesh import ProcMesh
    from monarch._ports.port import Port

T = TypeVar("T")

_KILLED_WITHIN = 1.0  # seconds that an agent has to say that what it has killed has ended
_ANSWER_LIMIT = 5.0  # seconds that an agent may take longer to say that processes have ended than they take to end


class HostAgent(Actor):
    """Starts and stops processes on its host for others, which own them."""

    @endpoint
    def answer(self) -> None:
        """Says that this host is there."""

    @endpoint
    def start(self, requests: list[Any], owner: int, mesh: int) -> list[int]:
        """Starts this host's part of ``requests``, which are for all the hosts that were asked; returns their nodes."""
        here = current_rank()
        count = len(requests) // here.extent.nelements
        return launch.start_here(requests[here.rank * count : (here.rank + 1) * count], owner, mesh)

    @endpoint(explicit_response_port=True)
    def stop_nodes(self, port: Port[None], nodes: list[int], reason: str, limit: float) -> None:
        """Stops those of ``nodes`` that are here, and answers when they have ended. Others may ask meanwhile."""
        ending = _core.stop_procs(nodes, reason, limit)

        def answer() -> None:
            port.send(ending.get())

        try:
            Thread(target=answer, daemon=True).start()
        except RuntimeError:  # there is none just now: others wait, which is better than an agent that has failed
            answer()


def agent_at(address: tuple[int, int]) -> Any:
    """The agent at that address, as a mesh without dimensions."""
    return ActorMesh([address], whole([], []), HostAgent, "agent", "<root>")


def start_nodes(agents: Any, requests: list[tuple[Any, ...]], mesh: int) -> list[int]:
    """Starts processes on several hosts; all, or raises what the first host that could not start its part said."""
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


def stop_nodes(agents: Any, nodes: list[int], reason: str, limit: float) -> Future[None]:
    """Stops processes on several hosts, whatever has become of the hosts."""
    agents._gather = lambda entries: None
    call = agents.stop_nodes.options(partial=True, deadline=limit + _ANSWER_LIMIT).call
    ending: Future[None] = _undisturbed(lambda: call(nodes, reason, limit))
    _core.release(nodes, reason)
    return ending


def then_stop(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Stops ``procs`` when ``ending`` is done."""
    from monarch._calls.python_futures import on_thread

    return on_thread(lambda: (ending.get(), procs.stop().get())[1], "monarch-hosts-stop")


def then_kill(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Kills ``procs`` when ``ending`` is done, or takes too long."""
    from monarch._calls.python_futures import on_thread

    return on_thread(lambda: (ending.exception(_KILLED_WITHIN), procs._kill().get())[1], "monarch-hosts-kill")
