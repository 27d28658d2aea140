"""Ports with a reducer: what actors of one process send is combined there before it leaves.

A process has one batch for each such port, whichever copies of the port its actors have. A batch leaves when it is
full, when it is old (a thread of its own sees to that), and whenever an actor, the process or the script ends.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch import _core
from monarch._calls import pickling, versions
from monarch._calls.packing import pack_error, pack_plain
from monarch._config import settings
from monarch._errors.exceptions import ActorError
from monarch._errors.tracebacks import format_exception
from monarch._ports.port import Port
from monarch._runtime import runtime
from monarch._runtime.here import here

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


class ReducingPort(Port[Any]):
    """A port of ``open_accum_port``. Where it was opened it sends like any other, elsewhere through a batch."""

    _reducer: Callable[[Any, Any], Any] | None  # where it was opened
    _code: bytes | None  # the reducer's pickle, once it has travelled
    _batch: Batch | None | bool  # None: not known yet; False: this is where it was opened

    @classmethod
    def _opened(cls, address: tuple[int, int], reducer: Callable[[Any, Any], Any]) -> ReducingPort:
        port = cls(*address, False, -1)
        port._reducer, port._code, port._batch = reducer, None, False
        return port

    def send(self, obj: Any) -> None:
        batch = self._find_batch()
        if batch:
            batch.add(self, obj)
        else:
            super().send(obj)

    def exception(self, e: BaseException) -> None:
        batch = self._find_batch()
        if batch:
            batch.flush()
        super().exception(e)

    def _find_batch(self) -> Any:
        if self._batch is None:
            node, index = self._parts()[:2]
            here = node == _core.node_id()
            self._batch = False if here else _batch_for((node, index), self._code)
        return self._batch

    def __reduce__(self) -> Any:
        if self._code is None:
            try:
                self._code = pickling.dumps_code(self._reducer)
            except Exception as error:
                raise TypeError(
                    f"this port cannot travel, because its reducer {self._reducer!r} cannot be pickled: {error}"
                ) from error
        return _arrived, (self._code, self.return_undeliverable, *self._parts())


def _arrived(code: bytes, returns: bool, *parts: Any) -> ReducingPort:
    port = ReducingPort(*parts)
    port.return_undeliverable = returns
    port._reducer, port._code, port._batch = None, code, None
    return port


class Batch:
    """What is held back of one port, in this process. Any thread."""

    __slots__ = ("__weakref__", "due", "lock", "port", "reducer", "sender", "size", "updates")

    def __init__(self, reducer: Callable[[Any, Any], Any]) -> None:
        self.reducer = reducer
        self.lock = threading.RLock()  # a reducer may send
        self.updates: list[Any] = []
        self.size = settings.get("split_max_buffer_size")  # how many make it full; as it was at the first of them
        self.due = 0.0  # when they are old
        # Who sent the last of them, and through which copy: told, if the message finds nobody.
        self.sender = 0
        self.port: Port[Any] | None = None

    def add(self, port: Port[Any], update: Any) -> None:
        sender = port._sender()
        update = _snapshot(update)
        if len(self.updates) + 1 >= self.size:
            port._wait_for_room()  # not with the lock: others, and what is old, need not wait
        with self.lock:
            if not self.updates:
                age = settings.seconds("split_max_buffer_age")
                self.size = settings.get("split_max_buffer_size") if age > 0 else 0
                self.due = time.monotonic() + age
            self.updates.append(update)
            self.port, self.sender = port, sender
            if len(self.updates) >= self.size:
                self.flush()
            elif len(self.updates) == 1:
                _flusher().watch(self)

    def flush(self) -> None:
        """Sends what is there, however much waits at the receiver."""
        with self.lock:
            updates, port, sender = self.updates, self.port, self.sender
            if port is None:
                return
            self.updates, self.port = [], None
            try:
                port._post(functools.reduce(self.reducer, updates), False, sender)
            except BaseException as error:
                _tell(port, sender, error, len(updates))
                if isinstance(error, KeyboardInterrupt):
                    raise

    def flush_if_room(self) -> bool:
        """For the thread that sends what is old: one receiver that is slow must not keep it from the others."""
        with self.lock:
            if self.port is not None and not self.port._has_room():
                return False
            self.flush()
        return True


def _tell(port: Port[Any], sender: int, problem: BaseException, count: int) -> None:
    """Has the receiver raise what a reducer has raised; its sender is not to blame, others may have sent too."""
    _, error, formatted, *_ = pack_error(problem)
    message = f"The reducer of a port has failed in process {os.getpid()}; {count} updates are lost."
    port._post(pack_plain(ActorError(error, message, formatted)), True, sender)


def _snapshot(update: Any) -> Any:
    """What is sent is as it was when it was sent, and belongs to the reducer, which may change it."""
    if type(update) in _PLAIN or (type(update) is tuple and all(type(part) in _PLAIN for part in update)):
        return update
    import pickle

    body, buffers = pickling.dumps(update)
    return pickle.loads(body, buffers=[bytearray(buffer) for buffer in buffers])


_batches_lock = threading.Lock()


def _batch_for(address: tuple[int, int], code: bytes | None) -> Batch:
    batches = here().batches
    batch: Batch | None = batches.get(address)
    if batch is not None:
        return batch
    assert code is not None
    made = Batch(versions.loads(code))  # not with the lock: it imports
    with _batches_lock:
        kept: Batch = batches.setdefault(address, made)
        return kept


def flush(limit: float) -> None:
    """Sends everything that is held back in this process.

    A reducer that is running already is waited for, so that what it is at is out too: ``limit`` seconds for all.
    """
    with _batches_lock:
        batches = list(here().batches.values())
    until = time.monotonic() + limit
    for batch in batches:
        if batch.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            try:
                batch.flush()
            except RuntimeError:
                pass  # the runtime has ended, and with it who might have received it
            finally:
                batch.lock.release()


runtime.port_flushers.append(flush)


class _Flusher:
    """Sends what has become old, on a thread that exists once something has been held back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # over an RLock: a signal's handler may send too
        self._batches: set[Batch] = set()  # all that hold something back, and some that did
        self._wakes_at = 0.0  # 0: it is not asleep
        self._started = False
        self._reported = False

    def watch(self, batch: Batch) -> None:
        with self._changed:
            if self._start():
                self._batches.add(batch)
                if batch.due < self._wakes_at:
                    self._changed.notify()
                return
        batch.flush()  # who would see to it when it is old?

    def _start(self) -> bool:
        """Whether there is a thread, or can be."""
        if not self._started:
            try:
                threading.Thread(target=self._run, name="monarch-reducers", daemon=True).start()
            except RuntimeError:
                return False
            self._started = True
        return True

    def _run(self) -> None:
        while True:
            batch = self._next_due()
            try:
                if not batch.flush_if_room():
                    batch.due = time.monotonic() + settings.seconds("split_max_buffer_age")
                    self.watch(batch)
            except BaseException as error:
                if not _core.has_runtime():
                    return
                self._report(error)
                batch.due = time.monotonic() + settings.seconds("split_max_buffer_age")
                self.watch(batch)  # what it has still, and what comes

    def _report(self, error: BaseException) -> None:
        if not self._reported:
            self._reported = True
            text = format_exception(error)
            _core.log_line(f"updates that were held back for a port could not be sent:\n{text}")

    def _next_due(self) -> Batch:
        with self._changed:
            while True:
                first = min(self._batches, key=lambda batch: batch.due, default=None)
                wait = None if first is None else first.due - time.monotonic()
                if first is not None and wait is not None and wait <= 0:
                    self._batches.remove(first)
                    return first
                self._wakes_at = float("inf") if first is None else first.due
                self._changed.wait(wait)
                self._wakes_at = 0.0


def _flusher() -> _Flusher:
    of = here()
    if of.flusher is None:
        of.flusher = _Flusher()
    flusher: _Flusher = of.flusher
    return flusher
