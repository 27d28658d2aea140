"""What an actor has spawned, actors and processes: it ends with the actor, before that cleans up."""

from __future__ import annotations

import time
from typing import Any

_LOOK_AT = 64  # so many entries, and then twice as many as were left: those that have ended go


class Owned:
    """The meshes that one actor owns. Any of its threads."""

    def __init__(self) -> None:
        self._entries: dict[int, Any] = {}  # by id: a mesh, or once it has been asked to end the future of that
        self._look_at = _LOOK_AT

    def add(self, mesh: Any) -> None:
        if len(self._entries) >= self._look_at:
            for key, entry in list(self._entries.items()):
                if not _is_mesh(entry) and _is_there(entry):
                    self._entries.pop(key, None)
            self._look_at = max(_LOOK_AT, 2 * len(self._entries))
        mesh._owner = self
        self._entries[id(mesh)] = mesh

    def ends(self, mesh: Any, end: Any) -> None:
        """``end`` is the future of its end. The mesh may go; its place is the future's."""
        mesh._owner = None
        if self._entries.pop(id(mesh), None) is not None:
            self._entries[id(end)] = end

    def forget(self, mesh: Any) -> None:
        """It ends by itself."""
        mesh._owner = None
        self._entries.pop(id(mesh), None)

    def stop(self, reason: str) -> list[Any]:
        """Asks all to end, and gives the futures of their ends."""
        ends = []
        for entry in list(self._entries.values()):
            try:
                ends.append(entry.stop(reason) if _is_mesh(entry) else entry)
            except Exception:
                pass  # this process ends, and who has started them ends them
        self._entries.clear()
        return ends


def _is_mesh(entry: Any) -> bool:
    return hasattr(entry, "_owner")


def _is_there(end: Any) -> bool:
    made_here = getattr(end, "_done", None)
    return bool(end._ready() if made_here is None else made_here.done())


def _stop_those_of(identity: Any) -> list[Any]:
    owned, identity._owned = identity._owned, None
    return [] if owned is None else owned.stop(f"its owner {identity} has ended")


def stop(identity: Any) -> None:
    """Asks what this actor owns to end. On any thread."""
    _stop_those_of(identity)


def stop_and_wait(identity: Any, limit: float) -> None:
    """Stops what this actor owns, and waits ``limit`` seconds for it."""
    deadline = time.monotonic() + limit
    for end in _stop_those_of(identity):
        try:
            end.get(timeout=max(0.0, deadline - time.monotonic()))
        except Exception:
            pass  # it was dead, or takes too long: who ends it is its host


async def stop_and_await(identity: Any, limit: float) -> None:
    """As :func:`stop_and_wait`, on the actor's loop."""
    ends = [end.as_asyncio() for end in _stop_those_of(identity)]
    if not ends:
        return
    import asyncio

    done, _ = await asyncio.wait(ends, timeout=limit)
    for end in done:
        end.exception()
