"""Actors are asked about failures of what they own: their ``__supervise__`` hook."""

from __future__ import annotations

from typing import Any

from monarch._calls.future import Future
from monarch._errors.mesh_failure import MeshFailure
from monarch._running.ends import format_failure
from monarch._runtime import forks


def supervise(cell: Any, told: tuple[Any, ...]) -> None:
    """Asks the hook of a sync actor, on its thread."""
    failure = MeshFailure(*told)
    try:
        answer = forks.call(cell.instance.__supervise__, failure)
        if hasattr(answer, "__await__"):
            getattr(answer, "close", bool)()
            if isinstance(answer, Future):
                raise TypeError(_returned_future(cell))
            raise TypeError(f"{cell.identity.class_name}.__supervise__ is async, and this actor has no event loop")
        deals_with_it = bool(answer)
    except BaseException as error:
        raised(cell, failure, error)
    else:
        decided(cell, failure, deals_with_it)


def _returned_future(cell: Any) -> str:
    return f"{cell.identity.class_name}.__supervise__ has returned a Future: wait for it with .get(), and return True"


async def supervise_all(cell: Any) -> None:
    """Asks the hook of an async actor about one failure after the other. It goes on with its messages meanwhile."""
    import asyncio  # an actor without a loop has none: its first failure would wait for this

    cell.enter_hook()
    while (told := cell.next_failure()) is not None:
        failure = MeshFailure(*told)
        try:
            answer = _without_loop(cell, failure)
            if hasattr(answer, "__await__"):
                is_future = isinstance(answer, Future)
                answer = await answer
                forks.end_if_child()
                if is_future and answer is None:  # such as that of respawn(), which was hardly meant as a no
                    raise TypeError(_returned_future(cell))
            deals_with_it = bool(answer)
        except BaseException as error:
            if issubclass(type(error), asyncio.CancelledError) and cell.ending:
                raise
            raised(cell, failure, error)
        else:
            decided(cell, failure, deals_with_it)


def _without_loop(cell: Any, failure: MeshFailure) -> Any:
    """A hook that is no coroutine may block, as sync endpoints of such a class may."""
    import asyncio

    hook = cell.instance.__supervise__
    if asyncio.iscoroutinefunction(hook):
        return forks.call(hook, failure)
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    cell.in_hook(True)
    try:
        return forks.call(hook, failure)
    finally:
        cell.in_hook(False)
        asyncio._set_running_loop(loop)


def decided(cell: Any, failure: MeshFailure, deals_with_it: bool) -> None:
    """Else the failure climbs: its owner fails with it."""
    if not deals_with_it:
        failure.climb(cell)
    failure.handled()


def raised(cell: Any, failure: MeshFailure, error: BaseException) -> None:
    """The hook itself has failed: so does the owner, of both."""
    why = format_failure(error, cell.identity)
    cell.end(f"{why}\nThis error occurred while handling another failure:\n{failure.report()}", True, failure.origin)
    failure.handled()
