"""The event loop of an async actor: one long-lived task takes the messages one by one and awaits each endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from _thread import get_ident
from collections.abc import Collection
from typing import Any

from monarch import _core
from monarch._meshes import owned
from monarch._running import threads
from monarch._runtime import forks, runtime

# After so many messages in a row the loop gets a turn, so that a backlog does not starve tasks and timers.
_TURN_EVERY = 64

# Seconds after its deadline in which a coroutine is cancelled: late enough that its end is surely no answer any more.
_AFTER_DEADLINE = 0.0005


def run(cell: Any) -> None:
    """Runs until the actor ends. On the actor's own thread."""
    _run_on_loop(_main(cell), threads.EVENT_LOOP)


_loops: dict[int, Any] = {}  # of the threads that run actors, by thread


def _catch_child() -> None:
    """In a child that was forked on the thread of an event loop: it must not go round in it with its parent's tasks."""
    loop = _loops.get(get_ident())
    if loop is None or not _core.in_forked_child():
        return
    handle = asyncio.Handle(_end_child, (), loop)
    ready = getattr(loop, "_ready", None)
    if ready is not None:
        ready.appendleft(handle)  # comes before what is the parent's
    else:
        loop.call_soon(_end_child)


os.register_at_fork(after_in_child=_catch_child)


def _end_child() -> None:
    forks.end(SystemExit(
        "monarch: a process made by os.fork() in an async actor cannot await there, its event loop is the parent's: "
        "let it end with os._exit(), by returning or by raising"
    ))  # fmt: skip


def _run_on_loop(main: Any, thread_name: str) -> None:
    threads.name_thread(thread_name)
    try:
        with asyncio.Runner() if hasattr(asyncio, "Runner") else _Runner() as runner:
            _loops[get_ident()] = runner.get_loop()
            runner.run(main)
    finally:
        _loops.pop(get_ident(), None)
        threads.name_thread(threads.DRIVER)  # the next actor may have no loop


class _Runner:
    """asyncio.Runner for Python 3.10."""

    def __enter__(self) -> _Runner:
        self.loop = asyncio.new_event_loop()
        return self

    def get_loop(self) -> Any:
        return self.loop

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def __exit__(self, *_: Any) -> None:
        self.loop.close()


async def _main(cell: Any) -> None:
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    hide = asyncio._set_running_loop
    tasks: dict[Any, None] = {}  # in their order: what is cancelled first is the same each time
    waiter: list[Any] = [None]

    def wake() -> None:
        cell.disarm()
        asking = cell.begin_supervising()
        if asking is not None:
            task = loop.create_task(asking)
            tasks[task] = None
            task.add_done_callback(lambda task: tasks.pop(task, None))
        if waiter[0] is not None and not waiter[0].done():
            waiter[0].set_result(None)

    loop.add_reader(cell.fileno(), wake)
    wake()  # something may have failed by now
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
                    tasks[task] = None
                    task.add_done_callback(lambda task: tasks.pop(task, None))
                else:
                    await _serve(cell, coroutine, ticket)
            count += 1
            if count % _TURN_EVERY == 0:
                await asyncio.sleep(0)
    finally:
        loop.remove_reader(cell.fileno())
        if not _core.is_simulation_over():
            await _end(cell, tasks)
            await _cancel_rest()


async def _end(cell: Any, tasks: Collection[Any]) -> None:
    """The end of an actor, on its loop. Whoever calls it from now on is told so, however long this takes."""
    cell.close()
    if tasks:
        await asyncio.sleep(0)  # each has begun: one that never does would leave its caller without an answer
        left = await _cancel(tasks)
        if left:
            what = f"{len(left)} of its endpoints went on after they had been cancelled (cleanup_timeout)"
            cell.report_hook(TimeoutError(what))
    if cell.identity._owned is not None:
        await owned.stop_and_await(cell.identity, runtime.limit("process_exit_timeout"))
    await _clean_up(cell)


async def _cancel(tasks: Collection[Any]) -> Collection[Any]:
    """Cancels these, and awaits their end for ``cleanup_timeout``. Returns those that went on, and are left behind."""
    for task in tasks:
        task.cancel()
    _, left = await asyncio.wait(tasks, timeout=runtime.limit("cleanup_timeout"))
    for task in left:
        leave(task)
    return left


def leave(task: Any) -> None:
    """Its code ends where it waits, and the loop may end without the task."""
    task._log_destroy_pending = False
    task.add_done_callback(lambda task: task.cancelled() or task.exception())  # which is no news
    asyncio.tasks._unregister_task(task)
    with contextlib.suppress(BaseException):  # it goes on even then
        task.get_coro().close()


async def _cancel_rest() -> None:
    """What its code has started itself and not awaited; the loop would wait for that without end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        await _cancel(sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name())))


async def _serve(cell: Any, coroutine: Any, ticket: Any) -> None:
    left = ticket.seconds_left
    try:
        result = await (coroutine if left is None else _within(left + _AFTER_DEADLINE, coroutine))
    except BaseException as error:
        kind = type(error)  # not isinstance, which asks the class of the user's for attributes
        try:
            if not issubclass(kind, GeneratorExit):  # that is leave(), which the task of _within() has yet to come to
                getattr(coroutine, "close", bool)()  # if it has not begun, that is no oversight
        finally:  # an awaitable of the user's may raise there, and its caller waits
            if left is not None and issubclass(kind, asyncio.TimeoutError) and ticket.seconds_left <= 0:
                cell.finish(ticket, None)  # it was cancelled: its caller has given up, and is told nothing
            else:
                cell.finish_error(ticket, error)
        if issubclass(kind, asyncio.CancelledError) and not cell.failed:
            raise
    else:
        cell.finish(ticket, result)


async def _within(seconds: float, coroutine: Any) -> Any:
    result, error = await asyncio.wait_for(_contained(coroutine), seconds)
    if error is not None:
        raise error
    return result


async def _contained(coroutine: Any) -> tuple[Any, BaseException | None]:
    """For a task of its own: SystemExit would end the loop, and a task asks any exception for attributes."""
    try:
        result = await coroutine
    except (asyncio.CancelledError, GeneratorExit):
        if _core.in_forked_child():
            forks.end(sys.exc_info()[1])
        raise
    except BaseException as error:
        if _core.in_forked_child():
            forks.end(error)
        return None, error
    forks.end_if_child()
    return result, None


def run_swarm(swarm: Any) -> None:
    """As :func:`run`, for all actors of a swarm in this process."""
    _run_on_loop(_swarm_main(swarm), threads.SWARM)


async def _swarm_main(swarm: Any) -> None:
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    hide = asyncio._set_running_loop
    tasks: dict[int, set[Any]] = {}  # of each actor, by index
    waiter: list[Any] = [None]
    begun = 0

    def wake() -> None:
        swarm.disarm()
        if waiter[0] is not None and not waiter[0].done():
            waiter[0].set_result(None)

    async def serve(cell: Any, coroutine: Any, ticket: Any) -> None:
        await _serve(cell, coroutine, ticket)
        if not ticket.concurrent and swarm.resume(cell):
            await end(cell)

    async def end(cell: Any) -> None:
        await _end(cell, tasks.pop(cell.index, set()) - {asyncio.current_task()})
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
                begun += 1
                if begun % _TURN_EVERY == 0:
                    await asyncio.sleep(0)
    finally:
        loop.remove_reader(swarm.fileno())
        await _cancel_rest()


async def _clean_up(cell: Any) -> None:
    hook = getattr(cell.instance, "__cleanup__", None)
    if hook is None or not asyncio.iscoroutinefunction(hook):
        return
    limit = runtime.limit("cleanup_timeout")
    cell.enter_hook()
    try:
        running = asyncio.ensure_future(_contained(hook(RuntimeError(cell.end_reason) if cell.failed else None)))
        if not (await asyncio.wait({running}, timeout=limit))[0]:
            await _cancel({running})
            raise TimeoutError(f"it was cancelled after {limit:g} s (cleanup_timeout)")
        _, error = running.result()
        if error is not None:
            raise error
    except BaseException as error:  # SystemExit too: it would end the loop, which others may live on
        cell.report_hook(error)
