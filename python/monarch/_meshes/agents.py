"""Hosts that have an agent (``src/monarch/host/agent.h``), which starts and stops processes there for whoever asks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from monarch import _core
from monarch._calls.handles import Handle
from monarch._meshes.mesh import STOPPED_BY_CLIENT
from monarch._processes import launch
from monarch._runtime import deadline
from monarch._values.geometry import Point, Shape, Slice
from monarch._values.ranks import ranks_text

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.proc_mesh import ProcMesh

T = TypeVar("T")

_KILLED_WITHIN = 1.0  # seconds that an agent has to say that what it has killed has ended
_LOOK_LIMIT = 1.0  # seconds that agents have to say how what they have started is
_QUIET = 1.0  # seconds that hosts are waited for without a word about it
_ANSWER_LIMIT = 5.0  # seconds that an agent may take longer to say that processes have ended than they take to end


class Agents(Handle):
    """Who starts processes on hosts, for a ``HostMesh``; of equal hosts the same."""

    def __init__(self, nodes: list[int], job: str | None = None) -> None:
        self._nodes = nodes
        self._job = job
        self.procs: ProcMesh | None = None  # for the owner of the hosts: what they are

    @property
    def nodes(self) -> list[int]:
        """Of the hosts, by base rank."""
        return self._nodes

    def are_known(self) -> bool:
        """Or may ``nodes`` have to wait, or raise?"""
        return True

    def give_up(self) -> bool:
        """Hosts that are not known yet are not wanted any more. False: they are known."""
        return False

    @classmethod
    def _received(cls, nodes: list[int], job: str | None) -> Agents:
        agents = cls(nodes)
        agents._arrived_from(job)
        return agents

    def _reduce_for(self, job: str | None) -> Any:
        return Agents._received, (self.nodes, job)


class ExpectedAgents(Agents):
    """Of hosts that are not known yet. Whoever wants the nodes waits for them, or gets what has gone wrong."""

    def __init__(self, ready: Callable[[], Callable[[], ProcMesh]]) -> None:
        """``ready`` waits for what must be there, on a thread of its own; what it returns makes the hosts."""
        from monarch._calls.python_futures import on_thread

        super().__init__([])
        self._lock = threading.Lock()
        self._known = self._given_up = False

        def make() -> list[int]:
            attach = ready()
            with self._lock:
                if self._given_up:
                    raise RuntimeError("HostMesh has already been shut down")
                self.procs = attach()
                self._known = True
            return self.procs._nodes

        self._made = on_thread(make, "monarch-attach")

    @property
    def nodes(self) -> list[int]:
        return self._made.get()

    def are_known(self) -> bool:
        return self._known

    def give_up(self) -> bool:
        with self._lock:
            self._given_up = not self._known
        return self._given_up


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
    if not agents.are_known():
        from monarch._calls.python_futures import on_thread

        return on_thread(lambda: _are_there(agents, view).get(), "monarch-hosts-wait")
    return _are_there(agents, view)


def _are_there(agents: Agents, view: Shape) -> Future[bool]:
    asked = _asked(agents, view, "initialized")
    return _core.ask_hosts(asked._hosts, asked)


def start_nodes(
    agents: Agents, view: Shape, common: launch.Common, wanted: list[launch.Wanted], waits: bool
) -> list[int]:
    """Has processes started, as many on each host, in rank order.

    Returns at once; until their hosts have answered, whoever sends to them or tells others of them waits
    (:func:`await_started`). ``waits``, or where a host is known to have ended: returns then, all or raises what the
    first host said that could not.
    """
    return undisturbed(lambda: _start_nodes(agents, view, common, wanted, waits))


def _start_nodes(
    agents: Agents, view: Shape, common: launch.Common, wanted: list[launch.Wanted], waits: bool
) -> list[int]:
    count = len(wanted) // len(view)
    waits = waits or any(_core.down_reason(agents.nodes[rank]) is not None for rank in view.ranks())
    nodes: list[int] = []
    asked_hosts: list[tuple[int, list[int] | None, Any]] = []
    for rank, base_rank in enumerate(view.ranks()):
        place = ", ".join(f"{label}={at}" for label, at in Point(rank, view.extent).items())
        one = Shape([], Slice(offset=base_rank, sizes=[], strides=[]))
        asked = _asked(agents, one, f"slice({place}).spawn_procs" if place else "spawn_procs")
        host = agents.nodes[base_rank]
        part = launch.order(common, wanted[rank * count : (rank + 1) * count], host, agents._job is not None)
        asked_hosts.append((host, *_core.start_on_host(host, part, asked, waits)))
    errors: list[BaseException] = []
    for host, there, started in asked_hosts:
        if started is not None and (error := started.exception()) is not None:
            errors.append(error)
        elif there is None:  # simulated
            _core.note_hosted(host, started.get())
            nodes += started.get()
        else:
            nodes += there
    if errors:
        stop_nodes(nodes, "their mesh could not be spawned", 0.0)
        raise errors[0]
    return nodes


def await_started(nodes: list[int]) -> None:
    """Before something is sent to these, or others hear of them: their hosts have begun to start them, or cannot."""
    if not _core.are_started(nodes):
        undisturbed(lambda: _core.await_started(nodes))


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


def stopped_on_hosts(nodes: list[int]) -> set[int]:
    """Which of these, as their hosts see them; of those that hosts have started for this process."""
    by_host: dict[int, list[int]] = {}
    for node in nodes:
        if host := _core.host_of(node):
            by_host.setdefault(host, []).append(node)
    if not by_host:
        return set()
    return undisturbed(lambda: _stopped_on_hosts(by_host))


def _stopped_on_hosts(by_host: dict[int, list[int]]) -> set[int]:
    ends = time.monotonic() + _LOOK_LIMIT
    asked = [
        (_core.look_on_host(host, there, Asked([host], "stopped_ranks")), there) for host, there in by_host.items()
    ]
    stopped: set[int] = set()
    for future, there in asked:
        if future.exception(max(0.0, ends - time.monotonic())) is None:
            stopped.update(node for node, (_, state, _) in zip(there, future.get()) if state in ("T", "t"))
    return stopped


def stop_nodes(nodes: list[int], reason: str, limit: float) -> Future[None]:
    """Stops processes that hosts have started for this one, whatever has become of the hosts."""
    return _core.stop_on_hosts(nodes, reason, limit, _ANSWER_LIMIT)


def then_stop(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Stops ``procs``, which are the hosts, when ``ending`` is done."""
    return _then_end(procs, ending, to_end=False)


def then_end(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """As :func:`then_stop`, and what outlives its scripts on these hosts ends with them."""
    return _then_end(procs, ending, to_end=True)


def _then_end(procs: ProcMesh, ending: Future[None], to_end: bool) -> Future[None]:
    from monarch._calls.python_futures import on_thread

    asked_at = time.monotonic()
    words = [(node, _core.look_on_host(node, [], Asked([node], "stop"))) for node in procs._nodes]

    def end() -> None:
        silent = _silent(procs, words, asked_at)
        ending.get()
        there = [node for node in procs._nodes if node not in silent]
        if to_end and there:
            # one that had ended before need not answer
            _core.ask_hosts(there, Asked(there, "hosts.shutdown"), True).exception(_ANSWER_LIMIT)
        if silent:  # they do not do what they are asked for, and wait for nobody
            _core.stop_procs(list(silent), STOPPED_BY_CLIENT, 0.0)
        procs.stop().get()

    return on_thread(end, "monarch-hosts-end")


def _silent(procs: ProcMesh, words: list[tuple[int, Future[Any]]], asked_at: float) -> set[int]:
    """Hosts that live, as far as is known, and have not said a word within ``_ANSWER_LIMIT``."""
    silent = _without_a_word(words, asked_at + _QUIET)
    if not silent:
        return silent
    ranks = [rank for rank, node in enumerate(procs._nodes) if node in silent]
    do = "does" if len(ranks) == 1 else "do"
    _core.log_line(
        f"waiting up to {_ANSWER_LIMIT:g} s for {ranks_text(ranks)} of {procs._name!r}, which {do} not answer, to end"
    )
    return _without_a_word(words, asked_at + _ANSWER_LIMIT)


def _without_a_word(words: list[tuple[int, Future[Any]]], until: float) -> set[int]:
    silent = set()
    for node, word in words:
        if isinstance(word.exception(max(0.0, until - time.monotonic())), TimeoutError):
            silent.add(node)
    return silent


def then_kill(procs: ProcMesh, ending: Future[None]) -> Future[None]:
    """Kills ``procs`` when ``ending`` is done, or takes too long."""
    from monarch._calls.python_futures import on_thread

    return on_thread(lambda: (ending.exception(_KILLED_WITHIN), procs._kill().get())[1], "monarch-hosts-kill")
