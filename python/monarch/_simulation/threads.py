"""Threads, locks and event loops that give the turn away where they wait."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from monarch import _core
from monarch._meshes import inhabitants, origins
from monarch._running.event_loop import leave
from monarch._simulation.patches import Patches


class Lock:
    """``threading.Lock``."""

    def __init__(self) -> None:
        self._free = _core.SimulatedFlag()
        self._free.set()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        until = None if timeout < 0 else time.monotonic() + timeout
        while not self._free.is_set():
            if not blocking or (until is not None and time.monotonic() >= until):
                return False
            if not _core.in_simulation():
                raise RuntimeError("this lock belongs to a simulation, and somebody there holds it")
            self._free.wait(-1.0 if until is None else max(0.0, until - time.monotonic()))
        self._free.clear()
        return True

    def release(self) -> None:
        if self._free.is_set():
            raise RuntimeError("release unlocked lock")
        self._free.set()

    def locked(self) -> bool:
        return not self._free.is_set()

    def _at_fork_reinit(self) -> None:
        self._free.set()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """``threading.RLock``."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner != get_ident():
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = get_ident()
        self._count += 1
        return True

    def release(self) -> None:
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if self._count == 0:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]

    # What threading.Condition uses.
    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _release_save(self) -> tuple[int, int | None]:
        state = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, int | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = state


def _start_new_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> int:
    thread = getattr(function, "__self__", None)
    _core.simulated_thread(getattr(thread, "name", "a thread"), lambda: function(*args, **(kwargs or {})))
    return 0


_ENDED = "_simulated_end"  # of a thread: what its end sets


def _start(before: Callable[[Any], None], thread: Any) -> None:
    ended = _core.SimulatedFlag()
    run = thread.run

    def run_and_tell() -> None:
        try:
            run()
        finally:
            ended.set()

    thread.run = run_and_tell
    setattr(thread, _ENDED, ended)
    before(thread)


def _join(before: Callable[..., None], thread: Any, timeout: float | None = None) -> None:
    ended = getattr(thread, _ENDED, None)
    if ended is None or not thread.is_alive():
        return before(thread, timeout)
    if ended.wait(-1.0 if timeout is None else max(0.0, timeout)):
        _core.simulated_sleep(0.0)  # its last steps
        before(thread, timeout)
    return None


class _Selector(selectors._BaseSelectorImpl):
    """Waits on the clock of the simulation, for descriptors that only its threads write."""

    over = False  # its process has died

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.over:
            return []
        wanted = {key.fd: key for key in self.get_map().values() if key.events & selectors.EVENT_READ}
        ready = _core.simulated_select(list(wanted), -1.0 if timeout is None else max(0.0, timeout))
        return [(wanted[fd], selectors.EVENT_READ) for fd in ready]


class EventLoop(asyncio.SelectorEventLoop):
    """An event loop of a simulated process."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def run_forever(self) -> None:
        try:
            super().run_forever()
        except _core.SimulationOver:
            self._waits.over = True
            for task in sorted(asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name())):
                leave(task)
            raise

    def time(self) -> float:
        return _core.simulated_ns() / 1e9

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """On a thread of its own, whatever the executor."""
        future = self.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            future.set_result(value) if error is None else future.set_exception(error)

        def work() -> None:
            value, error = None, None
            try:
                value = func(*args)
            except _core.SimulationOver:
                raise
            except BaseException as raised:
                error = raised
            self.call_soon_threadsafe(settle, value, error)

        _core.simulated_thread("an executor's thread", work)
        return future

    def _refuse(self, what: str) -> Any:
        raise NotImplementedError(
            f"{what}: not in monarch.testing.simulate(), which has neither network nor real processes"
        )

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        self._refuse("connections of asyncio")

    async def create_server(self, *_: Any, **__: Any) -> Any:
        self._refuse("servers of asyncio")

    async def create_datagram_endpoint(self, *_: Any, **__: Any) -> Any:
        self._refuse("sockets of asyncio")

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        self._refuse("subprocesses")

    async def subprocess_shell(self, *_: Any, **__: Any) -> Any:
        self._refuse("subprocesses")


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> Any:
        return EventLoop() if _core.in_simulation() else super().new_event_loop()


def patch(patches: Patches) -> None:
    """Threads, and the locks and event loops that are made from now on."""
    put = patches.put_for_simulated
    put(threading, "Lock", Lock)
    put(threading, "RLock", RLock)
    put(threading, "_allocate_lock", Lock)
    put(origins, "Lock", Lock)
    put(inhabitants, "RLock", RLock)
    put(threading, "_start_new_thread", _start_new_thread)
    start, join = threading.Thread.start, threading.Thread.join
    put(threading.Thread, "start", lambda thread: _start(start, thread))
    put(threading.Thread, "join", lambda thread, timeout=None: _join(join, thread, timeout))


def put_policy() -> Any:
    """Event loops of this thread, and of the simulation's, are simulated. Returns what was in force before."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    return before
