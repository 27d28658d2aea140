"""Results that stay where they were made: ``mesh.step.options(results="remote").call(...)`` (docs/design/032).

Whoever calls so owns what is kept for the call: a ``_Lease``, which the future and the handles of the results have in
common, says that it may go when nobody has them any more. Whoever has made a result puts it aside (:func:`keep`); in
each process there is one actor for each caller that gives results out and lets go of them (``Keeper``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._calls.endpoint import QUIET_FLAG, Endpoint
from monarch._meshes.actor_mesh import ActorMesh
from monarch._meshes.mesh import whole
from monarch._meshes.spawning import SpawnInfo, spawner_info
from monarch._runtime.context import context
from monarch._runtime.here import here

if TYPE_CHECKING:
    from monarch._calls.future import Future

R = TypeVar("R")

__all__ = ["RemoteResult"]

_lock = threading.RLock()  # a signal's handler may call too, and what is let go of may have destructors
_SWEEP_EVERY = 64  # results, before those of callers that are gone are looked for
_GIVEN_UP_MAX = 4096  # calls that were given up before all their results were there; older ones are forgotten


# ---- Where results are made ----


class Kept:
    """What a process has put aside, by the caller's node and the number of its call."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], dict[int, Any]] = {}  # by rank
        self._given_up: dict[tuple[int, int], int] = {}  # how many are yet to come
        self._seen = 0

    def put(self, of: tuple[int, int], rank: int, value: Any) -> None:
        with _lock:
            gone = self._of_the_dead()
            if of not in self._given_up:
                self._results.setdefault(of, {})[rank] = value
            elif self._given_up[of] == 1:
                del self._given_up[of]
            else:
                self._given_up[of] -= 1
        del gone  # not under the lock: what was kept may have destructors

    def get(self, of: tuple[int, int], rank: int) -> Any:
        with _lock:
            found = self._results.get(of, {})
            if rank in found:
                return found[rank]
        raise LookupError("the result is not kept any more: whoever had called for it has let go of it, or has ended")

    def drop(self, of: tuple[int, int], ranks: int) -> None:
        """So many results there are, or will be."""
        with _lock:
            gone = self._results.pop(of, {})
            if len(gone) < ranks:
                self._given_up[of] = ranks - len(gone)
            if len(self._given_up) > _GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]
        del gone

    def _of_the_dead(self) -> list[Any]:
        self._seen += 1
        if self._seen % _SWEEP_EVERY:
            return []
        return [self._results.pop(of) for of in list(self._results) if _core.down_reason(of[0]) is not None]


def _kept() -> Kept:
    """What this process has put aside."""
    of = here()
    with _lock:
        if of.kept is None:
            of.kept = Kept()
        return of.kept


def keep(value: Any, caller: int, call: int, rank: int) -> _Made:
    """Puts a result aside; what its caller is sent instead."""
    _kept().put((caller, call), rank, value)
    return _Made(call, rank)


class _Made:
    """A result, on its way to its caller, where it becomes a handle."""

    def __init__(self, call: int, rank: int) -> None:
        self._place = call, rank

    def __reduce__(self) -> Any:
        return _arrived, self._place


class Keeper(Actor):
    """Of one caller, in one process."""

    @endpoint
    def fetch(self, caller: int, call: int, rank: int) -> Any:
        return _kept().get((caller, call), rank)

    @endpoint
    def drop(self, caller: int, call: int, ranks: int) -> None:
        _kept().drop((caller, call), ranks)


# ---- Where they were called for ----


class _Lease:
    """Of the results of one call."""

    def __init__(self, call: int, keepers: list[tuple[int, int]], name: str) -> None:
        """``keepers``: by rank."""
        self.call, self.keepers, self.name = call, keepers, name
        self._node = _core.node_id()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the runtime may have ended
            counts = Counter(self.keepers)
            for ranks in set(counts.values()):
                mesh = _keeper_mesh([keeper for keeper, count in counts.items() if count == ranks], self.name)
                drop = mesh._make_endpoint("drop", QUIET_FLAG)
                drop._grant()  # it must not wait: this may run anywhere
                drop.broadcast(self._node, self.call, ranks)


def _keeper_mesh(keepers: list[tuple[int, int]], name: str) -> Any:
    return ActorMesh(keepers, whole(["procs"], [len(keepers)]), Keeper, name, "<root>")


def _keepers_of(nodes: list[int], name: str) -> list[tuple[int, int]]:
    """By node, of this caller; missing ones are spawned. Nobody owns them: they end with their process."""
    known = here().keepers
    with _lock:
        if new := [node for node in dict.fromkeys(nodes) if node not in known]:
            index = _core.new_actor_index(1)
            mesh = _keeper_mesh([(node, index) for node in new], name)
            instance = context().actor_instance
            info = tuple(SpawnInfo("results", ("procs",), (len(new),), spawner_info(instance), (), ()))
            mesh._ref().spawn(1, 0, (Keeper, (), {}, info), ((Keeper.__module__, Keeper.__qualname__), (), None, info))
            for node in [node for node in known if _core.down_reason(node) is not None]:
                del known[node]
            known.update((node, (node, index)) for node in new)
        return [known[node] for node in nodes]


def _arrived(call: int, rank: int) -> RemoteResult[Any]:
    lease = here().leases.get(call)
    if lease is None:
        raise LookupError("a result that stayed where it was made came for a call that nobody waits for")
    keeper = ActorMesh([lease.keepers[rank]], whole([], []), Keeper, lease.name, "<root>")
    return RemoteResult(keeper, _core.node_id(), call, rank, lease)


class RemoteResult(Generic[R]):
    """A result that has stayed in the process that made it: of ``mesh.endpoint.options(results="remote").call(...)``.

    It may be sent in messages, and is small. Whoever has it fetches the result, straight from there: ``get()``,
    ``await``, or ``fetch()`` for a future. In the process that made it that is the object itself.

    The result is kept while whoever has called for it has the future of the call, or one of the handles that came of
    it; handles that were sent on only borrow it. ``ActorError`` around ``LookupError`` when it is kept no more,
    ``SupervisionError`` when its process has ended.
    """

    __slots__ = ("_keeper", "_lease", "_place")

    def __init__(self, keeper: Any, caller: int, call: int, rank: int, lease: _Lease | None = None) -> None:
        self._keeper = keeper
        self._place = caller, call, rank
        self._lease = lease  # None: it is borrowed

    def fetch(self) -> Future[R]:
        """The result, as a future; asks at once."""
        node = self._keeper._ids[0][0]
        if node == _core.node_id():
            caller, call, rank = self._place
            return _core.completed_future(_kept().get((caller, call), rank))
        return self._keeper.fetch.call_one(*self._place)

    def get(self, timeout: float | None = None) -> R:
        """The result.

        Args:
            timeout: seconds; then ``TimeoutError``.
        """
        return self.fetch().get(timeout)

    def __await__(self) -> Generator[Any, None, R]:
        return self.fetch().__await__()

    def __reduce__(self) -> Any:
        return RemoteResult, (self._keeper, *self._place)

    def __repr__(self) -> str:
        return f"RemoteResult(of {self._keeper._name}, rank {self._place[2]})"


class RemoteEndpoint(Endpoint[Any, Any]):
    """An endpoint whose results stay where they are made."""

    _lease: _Lease | None = None
    _chosen: int | None = None  # made for a single call, to the actor in this process

    def _choose_rank(self) -> tuple[int, Endpoint[Any, Any]]:
        rank, chosen = super()._choose_rank()
        assert isinstance(chosen, RemoteEndpoint)
        chosen._chosen = self._mesh._nodes_in_view()[rank]
        return rank, chosen

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._leased("call", args, kwargs)

    def call_one(self, *args: Any, **kwargs: Any) -> Any:
        return self._leased("call_one", args, kwargs)

    def _stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._leased("_stream", args, kwargs)

    def _leased(self, adverb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Each call has an endpoint of its own, which its futures keep, and with it the lease."""
        if self._answers_by_port:
            raise TypeError(f"{self} answers through a port: there is no result that could stay where it is")
        name = f"{self}"
        own, nodes = self, [self._chosen or 0]
        if self._chosen is None:
            made_anew = self._mesh._make_endpoint(self._name, self._flags)._with_options(self._options)
            assert isinstance(made_anew, RemoteEndpoint)
            own, nodes = made_anew, self._mesh._nodes_in_view()
        keepers = _keepers_of(_core.latest(nodes), name)
        made = getattr(super(RemoteEndpoint, own), adverb)(*args, **kwargs)
        call = (made[0] if isinstance(made, list) else made)._call_number()
        own._lease = here().leases[call] = _Lease(call, keepers, name)
        return made

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(f"{self} has results='remote', and a broadcast has no results")

    def _send(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(f"{self} has results='remote', which is for calls: what is sent to a port goes to it")

    def _gather(self, entries: list[Any]) -> Any:
        """Handles, which keep the lease, as bytes would not."""
        gathered = super()._gather(entries)
        gathered.values()
        return gathered
