"""Makes anew what has failed and has a restart policy: on a thread of its own, which is there once something has."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from monarch import _core
from monarch._errors.mesh_failure import MeshFailure
from monarch._meshes.origins import SpawnOrigin, policies
from monarch._running import threads
from monarch._runtime import runtime


class _Failed(NamedTuple):
    undecided: Any  # what _core.decide takes
    origin: SpawnOrigin | None  # with its policy; None: it has none
    failure: MeshFailure

    @property
    def rank(self) -> int:
        return int(self.failure.crashed_ranks[0])


def watch_restarts() -> None:
    """What the thread runs."""
    threads.name_thread(threads.RESTARTS)
    while True:
        _decide(
            [
                _Failed(undecided, policies.get(mesh_id), MeshFailure(*told))
                for undecided, mesh_id, told in _core.next_restarts()
            ]
        )


def _decide(together: list[_Failed]) -> None:
    """About what has failed together: an actor, or a process with all that it had."""
    try:
        history = _make_anew(together)
    except Exception as error:
        history = f"It could not be made anew: {error}"
    for each in together:
        if history is None:
            each.failure.handled()
        else:
            _core.decide(each.undecided, history)


def _make_anew(together: list[_Failed]) -> str | None:
    """None: it is done. Else why not."""
    with_policy = [(each, each.origin) for each in together if each.origin is not None]
    if with_policy and not any(_is_current(each, origin) for each, origin in with_policy):
        return None  # it is there again
    for each, origin in with_policy:
        if origin.is_spent(each.rank):
            return origin.history(each.rank)
    if not with_policy:
        return ""  # it has been asked to end meanwhile
    node, actor = with_policy[0][0].failure._source
    if actor == 0:
        procs = with_policy[0][1].procs
        if procs is None or procs.stopped:
            return ""  # who has started the process may start another
        procs.respawn([procs.rank_of(node)])
    for each, origin in with_policy:
        _restart_actors(origin, each, actor != 0)
        _note(origin, each)
    return None


def _is_current(each: _Failed, origin: SpawnOrigin) -> bool:
    failed = _core.ended_ranks(origin.mesh_id, True)
    return failed is None or each.rank in failed


def _restart_actors(origin: SpawnOrigin, each: _Failed, itself: bool) -> None:
    """The failed one, if ``itself``, and with it those that its policy names."""
    assert origin.policy is not None
    others: list[int] = []
    if origin.policy.strategy != "one_for_one":
        first = 0 if origin.policy.strategy == "one_for_all" else each.rank + 1
        ended = {each.rank, *(_core.ended_ranks(origin.mesh_id, False) or ())}
        ranks = [rank for rank in range(first, len(origin.ids)) if rank not in ended]
        # Whoever has ended, or is in a process that has, is a failure of its own.
        others = [rank for rank, node in zip(ranks, origin.nodes_of(ranks)) if _core.down_reason(node) is None]
    if others:
        ids = [origin.ids[rank] for rank in others]
        stopped = _core.MeshRef(ids, None, False).stop(f"rank {each.rank} has failed, and all are made anew")
        stopped.exception(runtime.limit("process_exit_timeout"))
    if itself or others:
        origin.respawn([each.rank] if itself else [], others)


def _note(origin: SpawnOrigin, each: _Failed) -> None:
    assert origin.policy is not None
    made, policy = origin.made(each.rank), origin.policy
    made.append((time.monotonic(), each.failure.kind))
    pid = "" if each.failure.pid is None else f", pid {each.failure.pid}"
    which = {"one_for_one": "is", "one_for_all": "all are", "rest_for_one": "it and those after it are"}
    _core.log_line(
        f"rank {each.rank} of {origin.name!r} has failed ({each.failure.kind}{pid}) and {which[policy.strategy]} made "
        f"anew: {len(made)} of {policy.times} times within {policy.within:g} s"
    )
