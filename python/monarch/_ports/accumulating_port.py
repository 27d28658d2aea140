"""The receiving end of an accumulating port: its messages folded into a state, in order of arrival."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from monarch import _core
from monarch._calls.future import Future
from monarch._calls.python_futures import StepFuture
from monarch._ports.port import Port, PortReceiver
from monarch._ports.reducing_port import ReducingPort

__all__ = ["AccumulatingReceiver", "open_port"]

_MISSING = object()


class AccumulatingReceiver(PortReceiver[Any]):
    """What ``open_accum_port`` gives beside the port; it stays at the actor, or the client, that opened it."""

    __slots__ = ("_accumulator", "_failure", "_line", "_lock", "_message", "_state")

    def __init__(self, accumulator: Callable[[Any, Any], Any], initial_state: Any) -> None:
        super().__init__()
        self._accumulator = accumulator
        self._state = initial_state
        self._failure: BaseException | None = None  # of a message, and nobody has been told
        self._message: Future[Any] | None = None  # the first that is not in the state
        self._line: deque[weakref.ref[StateFuture]] = deque()
        self._lock = threading.RLock()

    def recv(self) -> Future[Any]:
        """The state, as soon as a message is in it that no earlier ``recv()`` is for, and all that came behind it.

        Each message is folded once, in order of arrival, in the thread that waits for a state. A message that is an
        exception, or that the accumulator raises at, is raised here and leaves the state as it was. A future whose
        ``get(timeout)`` expires and that is dropped loses nothing.
        """
        return self._next(False)

    def _next(self, ranked: bool) -> Future[Any]:
        if ranked:
            raise ValueError("an accumulating port has no ranks: what it gives comes from many")
        future = StateFuture._make(self)
        with self._lock:
            self._line.append(weakref.ref(future))
        return future

    def _advance(self, future: StateFuture) -> Future[Any] | None:
        """Folds what is there until ``future`` has its state. The message to wait for; None: it has."""
        with self._lock:
            while not future._settled:
                if (message := self._fold_one()) is not None:
                    return message
                self._settle_first()
                if future._settled and future._failure is None:
                    self._bring_up_to_date(future)
        return None

    def _fold_one(self) -> Future[Any] | None:
        """Takes one message into the state, or remembers its failure. Returns it if it is not there yet."""
        if self._failure is not None:
            return None
        message = self._message = self._message or self._receive(False)
        if not message._ready():
            return message
        try:
            self._state = self._accumulator(self._state, message._outcome())
        except Exception as error:
            self._failure = error
        self._message = None
        return None

    def _settle_first(self) -> None:
        """What was folded is for the first in the line. Those that were dropped are skipped."""
        future = None
        while future is None:
            future = self._line.popleft()()
        future._settled, future._state, future._failure = True, self._state, self._failure
        self._failure = None

    def _bring_up_to_date(self, last: StateFuture) -> None:
        """If nobody waits behind it, it gives what has come meanwhile too, up to a failure."""
        while not any(waiting() is not None for waiting in self._line):
            if self._fold_one() is not None or self._failure is not None:
                return
            last._state = self._state


class StateFuture(StepFuture):
    """What ``recv()`` of an accumulating port gives."""

    _receiver: AccumulatingReceiver
    _settled: bool
    _state: Any
    _failure: BaseException | None

    @classmethod
    def _make(cls, receiver: AccumulatingReceiver) -> StateFuture:
        future: StateFuture = _core.bare_future(cls)
        future._receiver, future._settled = receiver, False
        return future

    def _advance(self) -> Future[Any] | None:
        return None if self._settled else self._receiver._advance(self)

    def _result(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._state


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
