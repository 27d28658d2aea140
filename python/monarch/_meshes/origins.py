"""How processes were started and actors spawned: kept, so that what has ended can be made anew."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._processes import output
from monarch._runtime.here import here
from monarch._runtime.interrupts import uninterrupted

if TYPE_CHECKING:
    from monarch._errors.mesh_failure import MeshFailure
    from monarch._meshes.host_mesh import HostMesh
    from monarch._processes.launch import Common, Wanted

__all__ = ["Restart"]

_STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


class Restart:
    """A restart policy: ``procs.options(restart=Restart(times=3, within=60)).spawn(...)``.

    A rank that fails, or whose process ends, is made anew: in its process, or in one that is started in that one's
    place, with all that was spawned on it. Nobody is asked meanwhile, a line on stderr says what has happened. When a
    rank has been made anew ``times`` times ``within`` so many seconds, its next failure is told to its owner, with that
    history.

    Args:
        times: how often, for each rank; at least 1.
        within: seconds; a number above 0.
        strategy: which ranks. "one_for_one": the failed one. "one_for_all": all of its mesh. "rest_for_one": it and
            those of higher ranks. Those that live are stopped first: their ``__cleanup__`` is called, their state is
            lost.

    Wrong values raise ``TypeError`` or ``ValueError``. Read-only; equal are equal policies.
    """

    __slots__ = ("_strategy", "_times", "_within")

    def __init__(self, times: int = 3, within: float = 60.0, strategy: str = "one_for_one") -> None:
        if not isinstance(times, int) or isinstance(times, bool):
            raise TypeError(f"times must be an int, but is {times!r}")
        if times < 1:
            raise ValueError(f"times is {times}: a policy that makes nothing anew is none")
        if not isinstance(within, (int, float)) or isinstance(within, bool):
            raise TypeError(f"within must be a number of seconds, but is {within!r}")
        if not within > 0:
            raise ValueError(f"within is {within}: it must be above 0 seconds")
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(map(repr, _STRATEGIES))}, but is {strategy!r}")
        self._times, self._within, self._strategy = times, float(within), strategy

    @property
    def times(self) -> int:
        """How often each rank may be made anew."""
        return self._times

    @property
    def within(self) -> float:
        """Within how many seconds."""
        return self._within

    @property
    def strategy(self) -> str:
        """Which ranks are made anew."""
        return self._strategy

    def _key(self) -> tuple[Any, ...]:
        return self.times, self.within, self.strategy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Restart) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Restart(times={self.times}, within={self.within:g}, strategy={self.strategy!r})"

    def __reduce__(self) -> Any:
        return Restart, self._key()


class SpawnOrigin:
    """How the actors of a mesh were spawned."""

    KEPT_MAX = 1 << 20  # bytes of constructor arguments that are kept without a policy

    def __init__(
        self, name: str, ids: list[tuple[int, int]], mesh_id: int, per_process: int, policy: Restart | None
    ) -> None:
        self.name = name
        self.ids = ids  # by rank
        self.mesh_id = mesh_id
        self.record: Any = None  # _core.SpawnRecord; None: too large to be kept, or not sent yet
        self.per_process = per_process  # of a swarm; 0: it is none
        self.policy = policy
        self.procs: ProcsOrigin | None = None  # of the processes, if they were started here
        self.lock = Lock()  # that of `procs`, if there are any
        self.deciding = Lock()  # of its policy, where there are no `procs`
        self.undecided: set[MeshFailure] = set()  # of its actors, which its policy is to decide about
        self._made: dict[int, deque[tuple[float, str]]] = {}  # by rank: when it was made anew, of what it had failed

    def order(self, ended: Sequence[int], stopped: Sequence[int] = ()) -> tuple[Any, ...]:
        """What ``_core.restart`` takes: these ranks have ended, those were stopped for it."""
        return self.mesh_id, self.record, self.per_process, list(ended), list(stopped)

    def respawn(self, ranks: Sequence[int], stopped: Sequence[int] = ()) -> None:
        """Those of these ranks that have ended still, since others may be faster, and those ``stopped`` for it."""
        with self.lock:
            ended = _core.ended_ranks(self.mesh_id) or ()
            still = [rank for rank in ranks if rank in ended]
            if still or stopped:
                _core.restart([], 0, [], [self.order(still, stopped)])

    def failed_in(self, nodes: Iterable[int]) -> list[int]:
        """The ranks that have ended with these processes, and not before."""
        failed = _core.fallen_ranks(self.mesh_id)
        there = set(nodes)
        now = _core.latest([self.ids[rank][0] for rank in failed])
        return [rank for rank, node in zip(failed, now) if node in there]

    def nodes_of(self, ranks: Iterable[int]) -> list[int]:
        nodes: list[int] = _core.latest([self.ids[rank][0] for rank in ranks])
        return nodes

    # ---- The budget of its policy ----

    def made(self, rank: int) -> deque[tuple[float, str]]:
        """The times at which that rank was made anew, as far as they count, and of what it had failed."""
        assert self.policy is not None
        made = self._made.setdefault(rank, deque())
        while made and made[0][0] < time.monotonic() - self.policy.within:
            made.popleft()
        return made

    def is_spent(self, rank: int) -> bool:
        assert self.policy is not None
        return len(self.made(rank)) >= self.policy.times

    def history(self, rank: int) -> str:
        """In a line: why it is not made anew once more."""
        assert self.policy is not None
        made, now = self.made(rank), time.monotonic()
        ends = "; ".join(f"{now - when:.1f} s ago: {why}" for when, why in made)
        often = "once" if len(made) == 1 else f"{len(made)} times"
        return f"It had been made anew {often} within {self.policy.within:g} s, which its policy allows: {ends}"


class ProcsOrigin:
    """How processes were started, and what was spawned on them from this process. Any thread."""

    def __init__(self, nodes: list[int], common: Common, wanted: list[Wanted], host: HostMesh) -> None:
        self.nodes = nodes  # by base rank, as they were first
        self.common = common
        self.wanted = wanted  # by base rank
        self.host = host
        self.output: tuple[Any, ...] | None = None  # arguments of the last logging_option()
        self.mesh_id = 0
        self.stopped: list[str] = []  # ProcMesh._stopped
        self.lock = Lock()  # of one restart after the other, which may wait for agents of hosts
        self.deciding = Lock()  # of policies
        self._list_lock = RLock()  # a signal's handler may spawn too
        self._spawned: list[SpawnOrigin] = []
        self._look_at = 64  # so many, to leave out what has ended for good

    def add(self, spawned: SpawnOrigin) -> None:
        """Before the spawn is sent."""
        spawned.procs, spawned.lock = self, self.lock
        with self._list_lock:
            self._spawned.append(spawned)
            if len(self._spawned) >= self._look_at:
                self._spawned = [each for each in self._spawned if _core.is_owned(each.mesh_id)]
                self._look_at = max(64, 2 * len(self._spawned))

    def spawned(self) -> list[SpawnOrigin]:
        with self._list_lock:
            return list(self._spawned)

    def respawn(self, ranks: list[int], stopped: dict[int, list[int]] | None = None) -> list[int]:
        """Starts processes in the place of these, which have ended, with their actors. Returns who is there then.

        ``stopped``: by the number of their mesh, actors that were stopped elsewhere to be made anew with them. Somebody
        else may have done it meanwhile for some processes: a restart policy, or another thread.
        """
        with self.lock:
            if self.host._asks_agents():  # which may take long: Ctrl-C ends the wait
                return self._respawn(ranks, stopped or {})
            return uninterrupted(lambda: self._respawn(ranks, stopped or {}))

    def _respawn(self, ranks: list[int], stopped: dict[int, list[int]]) -> list[int]:
        now: list[int] = _core.latest(self.nodes)
        still = _core.ended_ranks(self.mesh_id) or ()
        there = [now[rank] for rank in ranks if rank not in still]
        ranks = [rank for rank in ranks if rank in still]
        if not ranks:
            return there
        ended = [now[rank] for rank in ranks]
        started = self._start(ranks)
        orders = self._orders(ended, stopped)
        try:
            _core.restart(list(zip(ended, started)), self.mesh_id, ranks, orders)
        except BaseException:
            self.host._stop_nodes(started, "nobody wants it", 0.0)
            raise
        if self.output is not None:
            output.set_output(started, *self.output)
        if self.stopped:
            self.host._stop_nodes(started, self.stopped[0], 0.0)
        return there + started

    def _orders(self, ended: list[int], stopped: dict[int, list[int]]) -> list[tuple[Any, ...]]:
        """What is to be made anew with these processes."""
        orders = []
        for spawned in self.spawned():
            again = spawned.failed_in(ended)
            others = stopped.get(spawned.mesh_id, [])
            if spawned.record is None and again:
                _core.log_line(
                    f"{spawned.name!r} does not come back with its process: its constructor arguments have more "
                    f"than {spawned.KEPT_MAX >> 20} MiB, and are kept only with a restart policy"
                )
            elif again or others:
                orders.append(spawned.order(again, others))
        return orders

    def rank_of(self, node: int) -> int:
        """Also of one in whose place another has been started."""
        return int(_core.latest(self.nodes).index(_core.latest([node])[0]))

    def awaited_at(self, node: int) -> list[tuple[SpawnOrigin, list[int]]]:
        """Meshes with a policy that is to make ranks anew at this process, and those ranks that come back with it."""
        awaited = []
        for spawned in self.spawned():
            if spawned.policy is not None:
                fallen = spawned.failed_in([node])
                undecided = [failure.crashed_ranks[0] for failure in list(spawned.undecided)]
                if fallen or node in spawned.nodes_of(undecided):
                    awaited.append((spawned, fallen))
        return awaited

    def forget(self) -> None:
        """They are to end."""
        with self._list_lock:
            for spawned in self._spawned:
                forget(spawned.mesh_id)
            self._spawned.clear()

    def _start(self, ranks: list[int]) -> list[int]:
        """All, or none."""
        self.host._check_alive()
        per_host = len(self.nodes) // len(self.host)
        at: dict[int, int] = {}
        try:
            for host in sorted({rank // per_host for rank in ranks}):
                there = [rank for rank in ranks if rank // per_host == host]
                started = self.host._one(host)._start_nodes(self.common, [self.wanted[rank] for rank in there], True)
                at.update(zip(there, started))
        except BaseException:
            if at:
                self.host._stop_nodes(list(at.values()), "others could not be started", 0.0)
            raise
        started = [at[rank] for rank in ranks]
        self.host._spawned.add(started)
        if self.host._spawned.ended:
            self.host._stop_nodes(started, "the host has been shut down", 0.0)
        return started


_look_at = 64  # so many policies, to leave out those of what has ended


def watch_over(spawned: SpawnOrigin) -> None:
    """From now on its policy counts."""
    global _look_at
    policies = here().policies
    policies[spawned.mesh_id] = spawned
    if len(policies) >= _look_at:
        for mesh_id in list(policies):
            if not _core.is_owned(mesh_id):
                policies.pop(mesh_id, None)
        _look_at = max(64, 2 * len(policies))
    _core.set_restarts(spawned.mesh_id)
    if spawned.procs is not None and spawned.procs.mesh_id:
        _core.set_restarts(spawned.procs.mesh_id)


def forget(mesh_id: int) -> None:
    """It is to end."""
    here().policies.pop(mesh_id, None)


def check_ranks(ranks: Any, count: int, ended: list[int], name: str) -> list[int]:
    """Those that are to be made anew: ``ranks``, or all that have ended. ``ValueError`` for others."""
    if ranks is None:
        return ended
    given = [ranks] if hasattr(ranks, "__index__") else ranks
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise TypeError(f"respawn takes ranks, such as [3] or failure.crashed_ranks, but was given {ranks!r}")
    wanted: list[int] = []
    for rank in given:
        if not hasattr(rank, "__index__") or isinstance(rank, bool):
            raise TypeError(f"respawn takes ranks, such as [3] or failure.crashed_ranks, but one is {rank!r}")
        number = rank.__index__()
        if not 0 <= number < count:
            raise ValueError(f"there is no rank {number} in {name!r}, which has {count}")
        wanted.append(number)
    wanted = sorted(set(wanted))
    living = [rank for rank in wanted if rank not in ended]
    if living:
        ranks_text = ", ".join(map(str, living))
        are = "ranks " + ranks_text + " of" if len(living) > 1 else "rank " + ranks_text + " of"
        live = "live" if len(living) > 1 else "lives"
        raise ValueError(f"{are} {name!r} {live}: only what has ended can be respawned")
    return wanted
