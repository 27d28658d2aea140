"""Futures whose outcome Python code makes: ``returns_future`` functions, folds, work on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from monarch import _core
from monarch._calls.future import Future, set_exception, warn_running_loop
from monarch._errors.exceptions import WouldBlockRuntime
from monarch._runtime.context import context

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_AT_LOOP = 1.0  # seconds until who waits for a body looks again at the loop that has it

_driving = threading.local()  # .body: a get() on this thread runs a body


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
        raise ValueError(f"invalid timeout {timeout}: expected a non-negative, finite number of seconds")


def _tell(mirrors: dict[asyncio.Future[None], asyncio.AbstractEventLoop], _: Any) -> None:
    def finish(mirror: asyncio.Future[None]) -> None:
        if not mirror.done():
            mirror.set_result(None)

    for mirror, loop in list(mirrors.items()):
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(finish, mirror)


class DoneFuture(Future[R]):
    """A future over a ``concurrent.futures.Future`` that somebody fills."""

    _done: concurrent.futures.Future[R]
    _mirrors: dict[asyncio.Future[None], asyncio.AbstractEventLoop]  # those that somebody waits for

    @classmethod
    def _make(cls) -> Any:
        future = _core.bare_future(cls)
        future._done, future._mirrors = concurrent.futures.Future(), {}
        future._done.add_done_callback(functools.partial(_tell, future._mirrors))  # no circle with the future
        return future

    def __repr__(self) -> str:
        state = "pending" if not self._done.done() else "failed" if self._done.exception() is not None else "done"
        return f"<Future: {state}>"

    def _start_here(self, timeout: float | None) -> None:
        """Called by a get() that finds no outcome: begins the work, if it has not begun."""

    def _start_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """As :meth:`_start_here`, for a coroutine that waits."""

    def get(self, timeout: float | None = None) -> R:
        _check_timeout(timeout)
        if not self._done.done():
            self._start_here(timeout)
            self._wait_here(timeout)
            if not self._done.done():
                raise TimeoutError
        return self._done.result()

    result = get

    def _wait_here(self, timeout: float | None) -> None:
        """Until it is done or the time is over."""
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._done.exception(timeout)

    def __await__(self) -> Generator[Any, None, R]:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise ValueError("__await__ with no active event loop (either asyncio or tokio)")
        self._start_on(loop)
        if not self._done.done():
            yield from self._mirror(loop)
        return self._done.result()

    def as_asyncio(self) -> asyncio.Future[R]:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise RuntimeError("as_asyncio() requires a running asyncio event loop.")
        self._start_on(loop)
        copy: asyncio.Future[R] = loop.create_future()

        def finish(_: Any) -> None:
            if copy.done():
                return
            error = self._done.exception()
            if error is not None:
                set_exception(copy, error)
            else:
                copy.set_result(self._done.result())

        mirror = self._mirror(loop)
        mirror.add_done_callback(finish)
        copy.add_done_callback(lambda _: mirror.cancel())
        return copy

    def _mirror(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future of the loop that is done when this one is; to cancel it cancels nothing else."""
        mirror: asyncio.Future[None] = loop.create_future()
        mirror.add_done_callback(lambda _: self._mirrors.pop(mirror, None))
        self._mirrors[mirror] = loop
        if self._done.done():  # and may have told the others already
            _tell({mirror: loop}, None)
        return mirror

    def _settle(self, work: Callable[[], R]) -> None:
        try:
            value = work()
        except BaseException as error:
            self._done.set_exception(error)
            del self  # which the error's traceback would hold, and that the error
        else:
            self._done.set_result(value)


def on_thread(work: Callable[[], R], name: str) -> Future[R]:
    """Runs ``work`` on a daemon thread of its own; the future is its outcome."""
    future: DoneFuture[R] = DoneFuture._make()
    threading.Thread(target=future._settle, args=(work,), name=name, daemon=True).start()
    return future


def finished() -> Future[None]:
    """A future that is there, with None; needs no runtime."""
    future: DoneFuture[None] = DoneFuture._make()
    future._done.set_result(None)
    return future


class WatchedFuture(DoneFuture[R]):
    """Of something that says itself that it has failed, where nobody looks at the future, when that goes."""

    _what: str
    _failed: Callable[[Any], str | None]  # the outcome -> what is wrong with it
    _looked = False
    _process: int  # that it is of

    def get(self, timeout: float | None = None) -> R:
        self._looked = True
        return super().get(timeout)

    result = get

    def _start_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looked = True

    def complain(self) -> None:
        """If it has failed, and nobody has looked; once."""
        if self._looked or not self._done.done() or self._process != os.getpid():  # a forked child has a copy
            return
        self._looked = True
        error = self._done.exception()
        why = self._failed(self._done.result()) if error is None else f"{type(error).__name__}: {error}"
        if why is not None:
            _core.log_line(f"{self._what} failed, and nobody has looked at the future: {why}")

    def __del__(self) -> None:
        self.complain()


def refused(what: str, error: Exception) -> Future[Any]:
    """``what`` was asked for, which cannot be because of ``error``."""
    future: WatchedFuture[Any] = WatchedFuture._make()
    future._what, future._process = what, os.getpid()
    future._done.set_exception(error)
    return future


def watched_on_thread(
    work: Callable[[], R], name: str, what: str, failed: Callable[[R], str | None]
) -> WatchedFuture[R]:
    """As :func:`on_thread`, for ``what``, whose failure is told where nobody looks."""
    future: WatchedFuture[R] = WatchedFuture._make()
    future._what, future._failed, future._process = what, failed, os.getpid()
    threading.Thread(target=future._settle, args=(work,), name=name, daemon=True).start()
    return future


class BodyFuture(DoneFuture[R]):
    """What a ``returns_future`` function gives: its body runs when somebody first looks, at most once."""

    _body: Callable[[], Awaitable[R]] | None
    _context: contextvars.Context
    _lock: threading.Lock
    _loop: weakref.ref[asyncio.AbstractEventLoop] | None  # that has the body; None: a get() has it, or nobody

    def _take_body(self, loop: asyncio.AbstractEventLoop | None = None) -> Callable[[], Awaitable[R]] | None:
        with self._lock:
            body, self._body = self._body, None
            if body is not None and loop is not None:
                self._loop = weakref.ref(loop)
        return body

    def _look_at_loop(self) -> None:
        """A body whose loop has ended is cancelled, as asyncio.run() would have done."""
        loop = None if self._loop is None else self._loop()
        if self._loop is not None and (loop is None or loop.is_closed()):
            self._cancel()

    def _cancel(self) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was done before
            self._done.set_exception(asyncio.CancelledError())

    def _wait_here(self, timeout: float | None) -> None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._look_at_loop()
        while self._loop is not None and not self._done.done() and (left := deadline - time.monotonic()) > 0:
            super()._wait_here(min(left, _LOOK_AT_LOOP))
            self._look_at_loop()
        if self._loop is None:
            super()._wait_here(timeout)

    def _mirror(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        mirror = super()._mirror(loop)
        if self._loop is None or self._loop() is loop:
            return mirror

        timer: asyncio.Handle

        def look() -> None:
            nonlocal timer
            self._look_at_loop()
            timer = loop.call_later(_LOOK_AT_LOOP, look)

        timer = loop.call_soon(look)
        mirror.add_done_callback(lambda _: timer.cancel())
        return mirror

    def _start_here(self, timeout: float | None) -> None:
        if getattr(_driving, "body", False):
            raise WouldBlockRuntime("get() inside a returns_future body that a get() runs would wait for itself: await")
        if asyncio._get_running_loop() is not None:
            warn_running_loop()
            body = self._take_body()
            if body is not None:
                thread = threading.Thread(target=self._run, args=(body, None), name="monarch-future", daemon=True)
                thread.start()
            return
        body = self._take_body()
        if body is not None:
            self._run(body, timeout)

    def _run(self, body: Callable[[], Awaitable[R]], timeout: float | None) -> None:
        """Runs the body to its end in a loop of its own, as ``asyncio.run`` does. What ends it early ends it for
        good."""

        async def bounded() -> R:
            work = asyncio.ensure_future(body())
            done, _ = await asyncio.wait({work}, timeout=timeout)
            if done:
                return work.result()
            work.cancel()
            await asyncio.wait({work})
            raise TimeoutError("returns_future operation did not finish in time")

        _driving.body = True
        try:
            self._done.set_result(self._context.run(asyncio.run, bounded()))
        except KeyboardInterrupt:
            self._done.set_exception(asyncio.CancelledError())
            raise
        except BaseException as error:
            self._done.set_exception(error)
        finally:
            _driving.body = False

    def _start_on(self, loop: asyncio.AbstractEventLoop) -> None:
        body = self._take_body(loop)
        if body is None:
            return

        async def run() -> None:
            try:
                value = await body()
            except GeneratorExit:  # the loop has gone
                self._cancel()
                raise
            except BaseException as error:
                self._done.set_exception(error)
            else:
                self._done.set_result(value)

        task = self._context.run(loop.create_task, run())
        # A loop holds its tasks weakly, and who looks may have gone.
        bodies = loop.__dict__.setdefault("_monarch_bodies", set())
        bodies.add(task)
        task.add_done_callback(bodies.discard)


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Turns an ``async def`` into a function that sync code can ``.get()`` and async code can ``await``.

    The call copies the context variables and starts nothing: the body runs when its future is first looked at, at most
    once, and never if nobody looks. The first ``await`` runs it as a task of that loop, which no observer's
    cancellation ends; once that loop is closed every later look raises ``CancelledError``. The first ``get`` runs it
    on the calling thread, as ``asyncio.run`` does; if that ``get`` times out or is interrupted the body is cancelled
    for good, and every later look raises the same ``TimeoutError`` (or ``CancelledError``). ``get`` in running asyncio
    code runs the body on a thread and warns; in a body that a ``get`` runs it raises ``WouldBlockRuntime``.
    ``TypeError`` for anything but an ``async def``.
    """
    if not asyncio.iscoroutinefunction(function):
        raise TypeError("returns_future requires an async function")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        context()
        future: BodyFuture[R] = BodyFuture._make()
        future._body = lambda: function(*args, **kwargs)
        future._context = contextvars.copy_context()
        future._lock, future._loop = threading.Lock(), None
        return future

    return call


class InterruptedFold(RuntimeError):
    """A signal's handler, or the function that folds, looks at what this thread is in the middle of."""

    def __init__(self) -> None:
        super().__init__("this is folded by the code that is interrupted here: it cannot be waited for")


class StepFuture(Future[Any]):
    """A future that waits for other futures, one after the other, while somebody waits for it."""

    def _advance(self) -> Future[Any] | None:
        """Takes in what is there, in any thread. The future to wait for next; None: the outcome is there.

        ``InterruptedFold``: this thread does so already.
        """
        raise NotImplementedError

    def _result(self) -> Any:
        """The outcome, or raises it; once _advance() has given None."""
        raise NotImplementedError

    def _look(self) -> AbstractContextManager[Any]:
        """Held while somebody waits, until the outcome is there or the wait ends with an exception."""
        return contextlib.nullcontext()

    def __repr__(self) -> str:
        return "<Future that is worked out while somebody waits>"

    def get(self, timeout: float | None = None) -> Any:
        _check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._look():
            try:
                while (waited_for := self._advance()) is not None:
                    waited_for._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except InterruptedFold:
                if deadline is None:
                    raise
                raise TimeoutError from None  # nothing can come before this returns
        return self._result()

    result = get

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise ValueError("__await__ with no active event loop (either asyncio or tokio)")
        with self._look():
            while (waited_for := self._advance()) is not None:
                yield from waited_for._wait_on(loop)
        return self._result()

    def as_asyncio(self) -> asyncio.Future[Any]:
        if asyncio._get_running_loop() is None:
            raise RuntimeError("as_asyncio() requires a running asyncio event loop.")
        return asyncio.ensure_future(self)


class FoldFuture(StepFuture):
    """A left fold over answers in order of arrival, as far as somebody has waited for it."""

    _answers: list[Future[Any]]
    _combine: Callable[[Any, Any], Any]
    _lock: Any
    _folding: bool  # in the thread that has the lock
    _state: Any
    _folded: int
    _failure: BaseException | None

    @classmethod
    def _make(cls, answers: list[Future[Any]], identity: Any, combine: Callable[[Any, Any], Any]) -> FoldFuture:
        fold: FoldFuture = _core.bare_future(cls)
        fold._answers, fold._combine, fold._state = answers, combine, identity
        fold._folded, fold._failure, fold._lock, fold._folding = 0, None, threading.RLock(), False
        return fold

    def _advance(self) -> Future[Any] | None:
        with self._lock:
            if self._folding:
                raise InterruptedFold
            try:
                self._folding = True
                return self._fold()
            finally:
                self._folding = False

    def _fold(self) -> Future[Any] | None:
        """The fold fails with an answer that is a failure, or with what ``combine`` raises."""
        while self._failure is None and self._folded < len(self._answers):
            answer = self._answers[self._folded]
            if not answer._ready():
                return answer
            try:
                self._state, self._folded = self._combine(self._state, answer._outcome()), self._folded + 1
            except Exception as error:
                self._failure = error
        return None

    def _result(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._state
