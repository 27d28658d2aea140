"""Future: the result of a call, to be waited for with ``get()`` or ``await``."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Generator
from threading import Lock, local
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch import _core
from monarch._errors.exceptions import DeadlineExceeded

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")

__all__ = ["Future"]


class Future(_core.FutureBase, Generic[R]):
    """The outcome of an operation that has started already. Programs get futures, they do not make them.

    ``get()`` and ``await`` may be used again and again, in any mix, from several threads, tasks and loops: all see the
    same value, or the same exception object. Cancelling a task that awaits cancels nothing else.
    """

    if TYPE_CHECKING:

        def get(self, timeout: float | None = None) -> R:
            """Blocks until the outcome is there, without the GIL; the value, or the exception raised.

            ``timeout`` in seconds: then ``TimeoutError``, and nothing is cancelled or lost; its ``endpoint`` and
            ``missing_ranks`` say whose answers were not there. Negative, infinite, NaN: ``ValueError``. Ctrl-C
            interrupts the main thread's wait. Inside a running event loop it works, blocks that loop, and warns
            (``UserWarning``).
            """

        def result(self, timeout: float | None = None) -> R:
            """As ``get``."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Future[R]:
        raise TypeError("Future objects are returned by Monarch operations and cannot be constructed directly.")

    def __repr__(self) -> str:
        ep, answered, ranks, failed = self._progress()
        what = "Future" if ep is None else f"Future of {ep}"
        if failed is None:
            return f"<{what}: pending, {answered} of {ranks} ranks have answered>" if ranks else f"<{what}: pending>"
        return f"<{what}: failed>" if failed else f"<{what}: done>"

    def __await__(self) -> Generator[Any, None, R]:
        loop = _running_loop()
        if loop is None:
            raise ValueError("__await__ with no active event loop (either asyncio or tokio)")
        # A short look at the rings is cheaper than a turn of the loop, unless the loop has something else to do.
        if not (self._poll() if _is_quiet(loop) else self._ready()):
            yield from self._wait_on(loop)
        return self._outcome()

    def _wait_on(self, loop: Any) -> Generator[Any, None, None]:
        """Until the outcome is there, without looking at it; or until the deadline of the code that waits."""
        observer, ticket, waiter = _observe(self, loop)
        timer = None
        try:
            left = self._seconds_left()
            if left is not None:
                timer = loop.call_later(left, _give_up_at_deadline, waiter)
            yield from waiter
        except BaseException:
            observer.forget(ticket)
            self._give_up()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def as_asyncio(self) -> asyncio.Future[R]:
        """A new ``asyncio.Future`` of the running loop with the same outcome; without a loop ``RuntimeError``."""
        loop = _running_loop()
        if loop is None:
            raise RuntimeError("as_asyncio() requires a running asyncio event loop.")
        copy: asyncio.Future[R] = loop.create_future()

        def finish(_: Any) -> None:
            if copy.done():
                return
            try:
                copy.set_result(self._outcome())
            except BaseException as error:
                set_exception(copy, error)

        if self._ready():
            finish(None)
            return copy
        observer, ticket, waiter = _observe(self, loop)

        def give_up(_: Any) -> None:
            if copy.cancelled():
                observer.forget(ticket)
                self._give_up()

        waiter.add_done_callback(finish)
        copy.add_done_callback(give_up)
        return copy

    def _take_inner(self) -> Any:
        """For programs that reach below the public API."""
        return Inner(self)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The exception that ``get(timeout)`` would raise, a ``TimeoutError`` too, or None. Waits as that does."""
        try:
            self.get(timeout)
        except Exception as error:
            return error
        return None


def _running_loop() -> Any:
    import asyncio

    return asyncio._get_running_loop()


def set_exception(future: Any, error: BaseException) -> None:
    """Of asyncio's futures, which before Python 3.12 refuse a StopIteration."""
    if isinstance(error, StopIteration):
        outer = RuntimeError("the outcome was a StopIteration")
        outer.__cause__ = error
        error = outer
    future.set_exception(error)


def _give_up_at_deadline(waiter: Any) -> None:
    if not waiter.done():
        waiter.set_exception(DeadlineExceeded("the deadline has passed while this was waited for"))


def _is_quiet(loop: Any) -> bool:
    return not getattr(loop, "_ready", True)


_LOOK = 0.3  # seconds until somebody looks at what is awaited; twice as long each time, while that is the same
_LAST_LOOK = 10.0


class _LoopObserver:
    """Completions for one loop: the core writes an eventfd, the loop's callback sets the futures."""

    def __init__(self, loop: Any) -> None:
        self.bridge = _core.LoopBridge()  # nothing here may hold the loop
        self.look_after = 0.0 if _core.on_actor_thread() else _LOOK  # until look(); 0: none is to come; or nobody looks
        self.look_timer: Any = lambda: None  # weak
        self.waiting: dict[int, Any] = {}
        self.next_ticket = 0
        loop.add_reader(self.bridge.fileno(), self.drain)

    def watch(self, future: Future[Any], waiter: Any, loop: Any) -> int:
        ticket = self.next_ticket
        self.next_ticket += 1
        self.bridge.watch(future, ticket)
        self.waiting[ticket] = waiter
        if self.look_after != _LOOK:  # what has been awaited for long is over, or there was nothing
            self.look_in(_LOOK, loop)
        return ticket

    def look_in(self, seconds: float, loop: Any) -> None:
        before = self.look_timer()
        if before is not None:
            before.cancel()
        self.look_after = seconds
        self.look_timer = weakref.ref(loop.call_later(seconds, self.look, loop, self.next_ticket))

    def forget(self, ticket: int) -> None:
        """Nobody waits for that any more: nothing of it may stay, a waiter holds its loop."""
        if self.waiting.pop(ticket, None) is not None:
            self.bridge.unwatch(ticket)

    def __del__(self) -> None:
        """The loop was dropped, and not closed: the calls would keep the bridge."""
        if _core.has_runtime():
            for ticket in self.waiting:
                self.bridge.unwatch(ticket)

    def look(self, loop: Any, newest: int) -> None:
        """Tells the core which call the actor of this loop awaits, if that is certain and was before ``newest``.

        Then it is the only task of its loop, no timer will wake it, and it awaits that call and nothing else: not so in
        ``wait_for()``, ``timeout()`` or ``gather()``.
        """
        import asyncio

        if not self.waiting:
            self.look_after = 0.0
            return
        tasks = asyncio.all_tasks(loop)
        timers = getattr(loop, "_scheduled", None)
        is_only = timers is not None and all(timer.cancelled() for timer in timers) and len(tasks) == 1
        only = getattr(tasks.pop(), "_fut_waiter", None) if is_only else None
        is_same, is_certain = True, False
        for ticket, waiter in list(self.waiting.items()):
            if ticket < newest:
                self.bridge.block(ticket, waiter is only)
                is_certain = is_certain or waiter is only
            else:
                is_same = False
        longest = _LAST_LOOK if is_certain else 2 * _LOOK  # what else there is may end at any time
        self.look_in(min(2 * self.look_after, longest) if is_same else _LOOK, loop)

    def drain(self) -> None:
        for ticket in self.bridge.drain():
            waiter = self.waiting.pop(ticket, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


_observed: weakref.WeakSet[Any] = weakref.WeakSet()  # loops
_observed_lock = Lock()


def _observer_of(loop: Any) -> _LoopObserver | None:
    # At the loop, which what waits there holds: a circle that goes once the program has dropped the loop.
    observer: _LoopObserver | None = loop.__dict__.get("_monarch_observer")
    return observer


def _observe(future: Future[Any], loop: Any) -> tuple[_LoopObserver, int, Any]:
    """An asyncio future that is done when ``future`` is, and what forgets it."""
    observer = _observer_of(loop)
    if observer is None:
        with _observed_lock:  # other threads have loops of their own
            _forget_closed_loops()
            _observed.add(loop)
        observer = loop.__dict__["_monarch_observer"] = _LoopObserver(loop)
    waiter = loop.create_future()
    return observer, observer.watch(future, waiter, loop), waiter


def _forget_closed_loops() -> None:
    """What their tasks and copies have not given up: nobody will ever see it."""
    for loop in list(_observed):
        observer = _observer_of(loop)
        if observer is not None and loop.is_closed():
            for ticket in list(observer.waiting):
                observer.forget(ticket)


_own = local()  # of a thread: whether what it waits for is this package's


def got(future: Future[R]) -> R:
    """``future.get()`` of code that itself has said that it holds up an event loop."""
    before, _own.waits = getattr(_own, "waits", False), True
    try:
        future._wait(None)
    finally:
        _own.waits = before
    return future._outcome()


def warn_running_loop() -> None:
    if getattr(_own, "waits", False):
        return
    warnings.warn(
        "Future.get() was called from within an active event loop. It blocks that loop until the result is there; "
        "use `await future` instead.",
        UserWarning,
        stacklevel=2,
    )


class Inner:
    """What ``Future._take_inner()`` gives: the work behind a future, for programs that start it by hand.

    Here work starts at the call, so there is nothing to start, and its handle is the future itself.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def spawn_handle(self) -> Future[Any]:
        """Something to ``await`` or to ``get()``."""
        return self._future
