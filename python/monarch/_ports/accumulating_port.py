"""The receiving end of an accumulating port: its messages folded into a state, in order of arrival."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from monarch import _core
from monarch._calls.future import Future
from monarch._calls.python_futures import InterruptedFold, StepFuture
from monarch._ports.port import Port, PortReceiver
from monarch._ports.reducing_port import ReducingPort

__all__ = ["AccumulatingReceiver", "open_port"]

R = TypeVar("R")

_MISSING = object()


class _WakeUp:
    """Sent to a port of one's own, in place of a message: who waits looks again."""


class Given(NamedTuple):
    """What a future was given: a state, or the failure of a message."""

    state: Any
    failure: BaseException | None
    number: int  # so many states had been given out then


class AccumulatingReceiver(PortReceiver[Any]):
    """What ``open_accum_port`` gives beside the port; it stays at the actor, or the client, that opened it."""

    __slots__ = (
        "_accumulator",
        "_failures",
        "_folding",
        "_fresh",
        "_given",
        "_left",
        "_line",
        "_lock",
        "_message",
        "_state",
    )

    def __init__(self, accumulator: Callable[[Any, Any], Any], initial_state: Any) -> None:
        super().__init__()
        self._accumulator = accumulator
        self._state = initial_state
        self._fresh = False  # there is something in the state that nobody has
        self._failures: deque[BaseException] = deque()  # of messages, and nobody has been told
        self._given = 0  # states, so far
        self._message: Future[Any] | None = None  # the first that is not in the state
        self._line: deque[weakref.ref[StateFuture]] = deque()
        self._left: deque[StateFuture] = deque()  # nobody waits for them any more
        self._lock = threading.RLock()
        self._folding = False  # in the thread that has the lock: what interrupts it there finds things half done

    def recv(self) -> Future[Any]:
        """The state, as soon as a message is in it that no earlier ``recv()`` is for, and all that came behind it.

        Each message is folded once, in order of arrival, in the thread that waits for a state. A message that is an
        exception, or that the accumulator raises at, is raised here and leaves the state as it was. A future whose
        ``get(timeout)`` expires loses nothing: what comes is for the others, until it is looked at again.
        """
        return self._next(False)

    def _next(self, ranked: bool) -> Future[Any]:
        if ranked:
            raise ValueError("an accumulating port has no ranks: what it gives comes from many")
        future = StateFuture._make(self)
        self._line.append(weakref.ref(future))
        return future

    def _advance(self, future: StateFuture) -> Future[Any] | None:
        """Folds what is there until ``future`` has its state. The message to wait for; None: it has."""
        try:
            with self._lock:
                if self._folding:
                    raise InterruptedFold
                return self._alone(lambda: self._fold_for(future))
        finally:
            self._let_go()

    def _alone(self, work: Callable[[], R]) -> R:
        try:
            self._folding = True
            return work()
        finally:
            self._folding = False

    def _fold_for(self, future: StateFuture) -> Future[Any] | None:
        if future._given is None and weakref.ref(future) not in self._line:
            self._line.append(weakref.ref(future))  # it had given up
        while future._given is None:
            if self._fresh or self._failures:
                self._settle_first()
                self._let_go_of_all()  # a signal's handler may have waited meanwhile
                if future._given is not None and future._given.failure is None:
                    self._bring_up_to_date(future)
            elif (message := self._fold_one()) is not None:
                return message
        return None

    def _fold_one(self) -> Future[Any] | None:
        """Takes one message into the state, or remembers its failure. Returns it if it is not there yet."""
        message = self._message = self._message or self._receive(False)
        if not message._ready():
            return message
        try:
            if (update := message._outcome()) is not _WakeUp:
                self._state, self._fresh, self._message = self._accumulator(self._state, update), True, None
        except Exception as error:
            self._failures.append(error)
        self._message = None
        return None

    def _settle_first(self) -> None:
        """What was folded is for the first in the line. Those that were dropped are skipped."""
        while (future := self._line[0]()) is None:
            self._line.popleft()
        if self._failures:
            future._given = Given(None, self._failures.popleft(), 0)
        else:
            self._given += 1
            future._given, self._fresh = Given(self._state, None, self._given), False
        self._line.popleft()

    def _bring_up_to_date(self, last: StateFuture) -> None:
        """If nobody waits behind it, it gives what has come meanwhile too, up to a failure."""
        while not self._somebody_waits():
            if self._fold_one() is not None or self._failures:
                return
            last._given, self._fresh = Given(self._state, None, self._given), False
            self._let_go_of_all()  # a signal's handler may have waited meanwhile

    def _somebody_waits(self) -> bool:
        return any(waiting() is not None for waiting in list(self._line))  # recv() may make it longer meanwhile

    def _take_back(self, given: Given) -> None:
        """Nobody has seen it: the next one has it. A state that has been given since has what was in this one."""
        if given.failure is not None:
            self._failures.appendleft(given.failure)
        elif given.number == self._given:
            self._fresh = True

    def _give_up(self, future: StateFuture) -> None:
        """Nobody waits for it any more: neither a place in the line nor a state may stay with it."""
        self._left.append(future)
        self._let_go()

    def _let_go(self) -> None:
        """Waits for no lock, as this may run anywhere: who has it comes here too, once it is free."""
        while self._left and self._lock.acquire(blocking=False):
            try:
                if self._folding:
                    return
                self._alone(self._let_go_of_all)
            finally:
                self._lock.release()

    def _let_go_of_all(self) -> None:
        while self._left:
            self._let_go_of(self._left.popleft())

    def _let_go_of(self, future: StateFuture) -> None:
        if future._looks or future._seen:
            return
        given, future._given = future._given, None
        if given is None:
            with contextlib.suppress(ValueError):
                self._line.remove(weakref.ref(future))
            return
        self._take_back(given)
        if self._somebody_waits():
            port: Port[Any] = Port(*self._address(), False, -1)
            with contextlib.suppress(Exception):  # as the runtime ends, and with it what waits
                port._post(_WakeUp, False, port._sender())


class Look:
    """A wait for a state."""

    def __init__(self, future: StateFuture) -> None:
        self._future = future

    def __enter__(self) -> None:
        self._future._looks.add(self)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        future = self._future
        came_late = isinstance(error, TimeoutError) and future._given is not None
        if error is None or came_late:
            future._seen = True
        future._looks.discard(self)
        if not future._looks and not future._seen:
            future._receiver._give_up(future)
        return came_late


class StateFuture(StepFuture):
    """What ``recv()`` of an accumulating port gives."""

    _receiver: AccumulatingReceiver
    _given: Given | None
    _looks: set[Look]  # at it, now
    _seen: bool

    @classmethod
    def _make(cls, receiver: AccumulatingReceiver) -> StateFuture:
        future: StateFuture = _core.bare_future(cls)
        future._receiver, future._given, future._looks, future._seen = receiver, None, set(), False
        return future

    def _look(self) -> Look:
        return Look(self)

    def _advance(self) -> Future[Any] | None:
        return None if self._seen else self._receiver._advance(self)

    def _result(self) -> Any:
        assert self._given is not None
        if self._given.failure is not None:
            raise self._given.failure
        return self._given.state

    def __del__(self) -> None:
        if self._given is not None and not self._seen:
            self._receiver._give_up(self)


def open_port(accumulator: Any) -> tuple[Port[Any], AccumulatingReceiver]:
    """See ``Mailbox.open_accum_port``."""
    state = getattr(accumulator, "initial_state", _MISSING)
    if state is _MISSING or not callable(accumulator):
        raise TypeError(
            f"an accumulator has an initial_state and is called as accumulator(state, update), not {accumulator!r}"
        )
    reducer = getattr(accumulator, "reducer", None)
    if reducer is not None and not callable(reducer):
        raise TypeError(f"the reducer of an accumulator is called as reducer(update, update), not {reducer!r}")
    receiver = AccumulatingReceiver(accumulator, state)
    address = receiver._address()
    if reducer is None:
        return Port(*address, False, -1), receiver
    return ReducingPort._opened(address, reducer), receiver
