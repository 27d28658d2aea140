"""Makes anew what has failed and has a restart policy: on a thread of its own, which is there once something has."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from monarch import _core
from monarch._errors.mesh_failure import MeshFailure
from monarch._meshes.origins import ProcsOrigin, SpawnOrigin
from monarch._running import threads
from monarch._runtime import runtime
from monarch._runtime.here import here
from monarch._values.ranks import ranks_text


class _Failed(NamedTuple):
    undecided: Any  # what _core.decide takes
    origin: SpawnOrigin | None  # with its policy; None: it has none
    failure: MeshFailure

    @property
    def rank(self) -> int:
        return int(self.failure.crashed_ranks[0])

    @property
    def is_process(self) -> bool:
        """Its process has ended, and with it whatever of its mesh was there."""
        return self.failure._source[1] == 0


def watch_restarts() -> None:
    """What the thread runs."""
    threads.name_thread(threads.RESTARTS)
    while True:
        together = [
            _Failed(undecided, here().policies.get(mesh_id), MeshFailure(*told))
            for undecided, mesh_id, told in _core.next_restarts()
        ]
        origins = [each.origin for each in together if each.origin is not None]
        for each in together:
            if each.origin is not None and not each.is_process:
                each.origin.undecided.add(each.failure)
        lock = _lock_of(together)
        # Where actors are stopped first, or another host is asked, that may take long, and others do not wait for it.
        if any(map(_takes_long, origins)) or not lock.acquire(blocking=False):
            try:
                threading.Thread(target=_decide, args=(together, lock), daemon=True, name=threads.RESTARTS).start()
            except RuntimeError:  # there is none just now: others wait
                _decide(together, lock)
        else:
            lock.release()
            _decide(together, lock)


def _lock_of(together: list[_Failed]) -> threading.Lock:
    """One decision after the other about what shares processes: who stops others must find who is there now."""
    for each in together:
        if each.origin is not None:
            return each.origin.deciding if each.origin.procs is None else each.origin.procs.deciding
    procs = _process_alone(together)
    return threading.Lock() if procs is None else procs[0].deciding


def _takes_long(origin: SpawnOrigin) -> bool:
    assert origin.policy is not None
    return origin.policy.strategy != "one_for_one" or (origin.procs is not None and origin.procs.host._asks_agents())


def _decide(together: list[_Failed], lock: threading.Lock) -> None:
    """About what has failed together: an actor, or a process with all that it had."""
    try:
        with lock:
            history = _make_anew(together)
    except Exception as error:
        history = f"It could not be made anew: {error}".encode(errors="replace").decode().replace("\0", "?")
    if history:
        first = next((each for each in together if each.origin is not None), together[0])
        _core.log_line(f"{_failed([each for each in together if each.origin is first.origin])}. {history}")
    for each in together:
        if each.origin is not None:
            each.origin.undecided.discard(each.failure)
        if history is None:
            each.failure.handled()
        else:
            _core.decide(each.undecided, history)


_NOBODYS = ""  # instead of a history: there is no policy for it


def _make_anew(together: list[_Failed]) -> str | None:
    """None: it is done. Else what its owner is told beside the failure."""
    of_meshes: dict[int, list[_Failed]] = {}
    for each in together:
        if each.origin is not None:
            of_meshes.setdefault(each.origin.mesh_id, []).append(each)
    if not of_meshes:
        return _make_process_anew(together)
    failed = [[each for each in those if each.failure.is_current()] for those in of_meshes.values()]
    failed = [those for those in failed if those]
    if not failed:
        return None  # it is there again
    for those in failed:
        for each in those:
            assert each.origin is not None
            if each.origin.is_spent(each.rank):
                return each.origin.history(each.rank)
    first = failed[0][0]
    assert first.origin is not None
    node = first.failure._source[0]
    if not first.is_process:
        first.origin.respawn([first.rank], _stop_others(first.origin, [first.rank]))
    else:
        procs = first.origin.procs
        if procs is None or procs.stopped:
            return _NOBODYS  # who has started the process may start another
        stopped = {}
        for those in failed:
            origin = those[0].origin
            assert origin is not None
            stopped[origin.mesh_id] = _stop_others(origin, [each.rank for each in those])
        procs.respawn([procs.rank_of(node)], stopped)
    _note(failed)
    return None


def _process_alone(together: list[_Failed]) -> tuple[ProcsOrigin, _Failed] | None:
    """The failure of a process in which nothing with a policy was left to fail with it."""
    watched = [origin.procs for origin in list(here().policies.values()) if origin.procs is not None]
    found = ((procs, each) for procs in watched for each in together if each.failure._mesh_id == procs.mesh_id)
    return next(found, None)


def _make_process_anew(together: list[_Failed]) -> str | None:
    """Where a policy was about to make something anew there, which had failed before, or was stopped for it."""
    found = _process_alone(together)
    if found is None:
        return _NOBODYS
    procs, process = found
    if not process.failure.is_current():
        return None
    awaited = procs.awaited_at(process.failure._source[0])
    if not awaited or procs.stopped:
        return _NOBODYS
    for origin, ranks in awaited:
        for rank in ranks:
            if origin.is_spent(rank):
                return origin.history(rank)
    procs.respawn([procs.rank_of(process.failure._source[0])])
    for origin, ranks in awaited:
        for rank in ranks:
            origin.made(rank).append((time.monotonic(), process.failure.kind))
    _core.log_line(f"{_failed([process])} and is made anew, since a restart policy makes actors anew in it")
    return None


def _stop_others(origin: SpawnOrigin, failed: list[int]) -> list[int]:
    """Those that its policy names beside the ones that have failed."""
    assert origin.policy is not None
    if origin.policy.strategy == "one_for_one":
        return []
    first = 0 if origin.policy.strategy == "one_for_all" else min(failed) + 1
    ended = {*failed, *(_core.ended_ranks(origin.mesh_id) or ())}
    ranks = [rank for rank in range(first, len(origin.ids)) if rank not in ended]
    # Whoever has ended, or is in a process that has, is a failure of its own.
    others = [rank for rank, node in zip(ranks, origin.nodes_of(ranks)) if _core.down_reason(node) is None]
    if others:
        ids = [origin.ids[rank] for rank in others]
        stopped = _core.MeshRef(ids, None, False).stop(f"rank {failed[0]} has failed, and all are made anew")
        stopped.exception(runtime.limit("process_exit_timeout"))
    return others


def _note(failed: list[list[_Failed]]) -> None:
    """A line for what has failed together, by mesh: an actor, or what a process had of each."""
    least: tuple[int, int, Any] | None = None  # how often it may still be made anew: of all the one with the least
    for those in failed:
        origin = those[0].origin
        assert origin is not None and origin.policy is not None
        for each in those:
            made = origin.made(each.rank)
            made.append((time.monotonic(), each.failure.kind))
            left = origin.policy.times - len(made)
            if least is None or left < least[0]:
                least = left, len(made), origin.policy
    assert least is not None
    _, most, policy = least
    first = failed[0]
    assert first[0].origin is not None and first[0].origin.policy is not None
    others = {"one_for_all": ", with all others", "rest_for_one": ", with those after it"}
    _core.log_line(
        f"{_failed(first)}{_beside(failed[1:])} and {'is' if len(first) == 1 else 'are'} made anew"
        f"{others.get(first[0].origin.policy.strategy, '')}: {most} of {policy.times} times within {policy.within:g} s"
    )


_NAMED = 3  # meshes


def _beside(failed: list[list[_Failed]]) -> str:
    """The other meshes that have lost something with the same process."""
    if not failed:
        return ""
    names = [repr(those[0].origin.name) for those in failed if those[0].origin is not None]
    named = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return f" with {len(names)} other mesh{'es' * (len(names) != 1)} on its process ({named})"


def _failed(those: list[_Failed]) -> str:
    """Who of one mesh has failed, and of what."""
    first = those[0]
    kind = f"{first.failure.kind}, pid {first.failure.pid}" if first.failure.pid else first.failure.kind
    has = "has" if len(those) == 1 else "have"
    return f"{ranks_text([each.rank for each in those])} of {first.failure.mesh_name!r} {has} failed ({kind})"
