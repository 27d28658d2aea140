"""The event loop of an async actor: one long-lived task takes the messages one by one and awaits each endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

from monarch import _actor

# After so many messages in a row the loop gets a turn, so that a backlog does not starve tasks and timers.
_TURN_EVERY = 64

# Seconds after its deadline in which a coroutine is cancelled: late enough that its end is surely no answer any more.
_AFTER_DEADLINE = 0.0005


def run(cell: Any) -> None:
    """Runs until the actor ends. On the actor's own thread."""
    _run_on_loop(_main(cell), "monarch-actor-event-loop")


def _run_on_loop(main: Any, thread_name: str) -> None:
    _actor.name_thread(thread_name)
    try:
        with asyncio.Runner() if hasattr(asyncio, "Runner") else _Runner() as runner:
            runner.run(main)
    finally:
        _actor.name_thread(_actor.SYNC_THREAD)  # the next actor may have no loop


class _Runner:
    """asyncio.Runner for Python 3.10."""

    def __enter__(self) -> _Runner:
        self.loop = asyncio.new_event_loop()
        return self

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def __exit__(self, *_: Any) -> None:
        self.loop.close()


async def _main(cell: Any) -> None:
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    hide, tasks = asyncio._set_running_loop, set()
    waiter: list[Any] = [None]

    def wake() -> None:
        cell.disarm()
        if waiter[0] is not None and not waiter[0].done():
            waiter[0].set_result(None)

    loop.add_reader(cell.fileno(), wake)
    step, count = cell.step, 0
    try:
        while True:
            hide(None)  # sync endpoints of a mixed class run here, and must not see the loop
            try:
                outcome = step()
            finally:
                hide(loop)
            if outcome is None:
                if not ready and cell.poll():
                    continue
                if cell.arm():
                    waiter[0] = loop.create_future()
                    await waiter[0]
                count = 0
                continue
            if outcome is False:
                break
            if outcome is not True:
                coroutine, ticket = outcome
                if ticket.concurrent:
                    task = loop.create_task(_serve(cell, coroutine, ticket))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    await _serve(cell, coroutine, ticket)
            count += 1
            if count % _TURN_EVERY == 0:
                await asyncio.sleep(0)
    finally:
        loop.remove_reader(cell.fileno())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        await _clean_up(cell)


async def _serve(cell: Any, coroutine: Any, ticket: Any) -> None:
    left = ticket.seconds_left
    try:
        result = await (coroutine if left is None else _within(left + _AFTER_DEADLINE, coroutine))
    except BaseException as error:
        if left is not None and isinstance(error, asyncio.TimeoutError) and ticket.seconds_left <= 0:
            return  # it was cancelled: its caller has given up
        cell.finish_error(ticket, error)
        if isinstance(error, asyncio.CancelledError) and not cell.failed:
            raise
    else:
        cell.finish(ticket, result)


async def _within(seconds: float, coroutine: Any) -> Any:
    """As asyncio.wait_for(), which runs it in a task of its own: one that raises SystemExit would end the loop."""

    async def contained() -> Any:
        try:
            return await coroutine, None
        except (SystemExit, KeyboardInterrupt) as error:
            return None, error

    result, error = await asyncio.wait_for(contained(), seconds)
    if error is not None:
        raise error
    return result


def run_swarm(swarm: Any) -> None:
    """As :func:`run`, for all actors of a swarm in this process."""
    _run_on_loop(_swarm_main(swarm), "monarch-swarm")


async def _swarm_main(swarm: Any) -> None:
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    hide = asyncio._set_running_loop
    tasks: dict[int, set[Any]] = {}  # of each actor, by index
    waiter: list[Any] = [None]

    def wake() -> None:
        swarm.disarm()
        if waiter[0] is not None and not waiter[0].done():
            waiter[0].set_result(None)

    async def serve(cell: Any, coroutine: Any, ticket: Any) -> None:
        await _serve(cell, coroutine, ticket)
        if not ticket.concurrent and swarm.resume(cell):
            await end(cell)

    async def end(cell: Any) -> None:
        others = [task for task in tasks.pop(cell.index, ()) if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if others:
            await asyncio.gather(*others, return_exceptions=True)
        await _clean_up(cell)
        swarm.end(cell)
        wake()  # was it the last?

    loop.add_reader(swarm.fileno(), wake)
    try:
        while True:
            hide(None)  # sync endpoints of a mixed class run here, and must not see the loop
            try:
                outcome = swarm.step()
            finally:
                hide(loop)
            if outcome is False:
                break
            if outcome is True:
                await asyncio.sleep(0)
            elif outcome is None:
                if not ready and swarm.poll():
                    continue
                if swarm.arm():
                    waiter[0] = loop.create_future()
                    await waiter[0]
            else:
                cell, coroutine, ticket = outcome
                work = end(cell) if coroutine is None else serve(cell, coroutine, ticket)
                task = loop.create_task(work)
                own = tasks.setdefault(cell.index, set())
                own.add(task)
                task.add_done_callback(own.discard)
    finally:
        loop.remove_reader(swarm.fileno())


async def _clean_up(cell: Any) -> None:
    hook = getattr(cell.instance, "__cleanup__", None)
    if hook is None or not asyncio.iscoroutinefunction(hook):
        return
    from monarch import _runtime

    limit = _runtime.limit("cleanup_timeout")
    cell.enter_hook()
    try:
        await _within(limit, hook(RuntimeError(cell.end_reason) if cell.failed else None))
    except asyncio.TimeoutError:
        cell.report_hook(TimeoutError(f"it was cancelled after {limit:g} s (cleanup_timeout)"))
    except BaseException as error:  # SystemExit too: it would end the loop, which others may live on
        cell.report_hook(error)
