"""The end of a ``with`` block over processes: whom it waits for is said, and Ctrl-C kills what has not ended.

After an exception that is said soon, since nobody sees the exception before the wait is over.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from monarch import _core
from monarch._errors.exceptions import DeadlineExceeded
from monarch._runtime import runtime

if TYPE_CHECKING:
    from monarch._calls.future import Future

_QUIET = 2.0  # seconds of a wait that nothing is said about
_QUIET_AFTER_EXCEPTION = 0.5
_KILL_LIMIT = 2.0  # seconds: nobody waits longer for what was killed

_HURRY = "_monarch_in_a_hurry"  # in an exception's dictionary


ended: Callable[[set[int]], None]  # provided by what decides about failures


def provide(take_up: Callable[[set[int]], None]) -> None:
    """``take_up``, at the end of a block that no exception has left, what has failed of meshes of these numbers."""
    global ended
    ended = take_up


class Ending(Protocol):
    """What a block is over."""

    _at_interrupt: str  # what Ctrl-C does while its end is waited for

    def _not_ended(self) -> str:
        """Who has not ended, for people."""

    def _kill(self) -> Future[None]:
        """Ends at once what has not ended, where that can be done."""


def wait(of: Ending, end: Future[None], error: BaseException | None, limit: float | None = None) -> None:
    """Waits for ``end`` after a block that ``error``, if any, has left; ``limit`` seconds, then ``TimeoutError``."""
    quiet, rest = _parts(error, limit)
    try:
        if _in_a_hurry(error):
            _wait_for_kill(of)
        elif not _is_there_within(end, quiet, rest == 0):
            _tell(of, error)
            end.get(timeout=rest)
    except KeyboardInterrupt as interrupt:
        _hurry(interrupt, error)
        _wait_for_kill(of)
        if not isinstance(error, KeyboardInterrupt):
            raise


def _is_there_within(end: Future[None], seconds: float, must_be: bool) -> bool:
    try:
        end.get(timeout=seconds)
        return True
    except TimeoutError as error:
        if must_be or isinstance(error, DeadlineExceeded):
            raise
        return False


async def wait_async(of: Ending, end: Future[None], error: BaseException | None, limit: float | None = None) -> None:
    """As :func:`wait`. What Ctrl-C does there, a cancellation does here: that is how asyncio passes it on."""
    import asyncio

    quiet, rest = _parts(error, limit)
    try:
        if _in_a_hurry(error):
            await _await_kill(of)
            return
        ended = end.as_asyncio()
        if not (await asyncio.wait([ended], timeout=quiet))[0] and rest != 0:
            _tell(of, error)
        await asyncio.wait_for(ended, rest)
    except (KeyboardInterrupt, asyncio.CancelledError) as interrupt:
        _hurry(interrupt, error)
        await _await_kill(of)
        raise


def _parts(error: BaseException | None, limit: float | None) -> tuple[float, float | None]:
    """How long to wait and say nothing, and how long then; None: for ever."""
    quiet = _QUIET if error is None else _QUIET_AFTER_EXCEPTION
    if limit is None:
        return quiet, None
    return min(quiet, limit), max(0.0, limit - quiet)


def _hurry(*errors: BaseException | None) -> None:
    """The blocks around, which one of them leaves next, are not to wait either."""
    for error in errors:
        if error is not None:
            error.__dict__[_HURRY] = True  # not setattr: users' exceptions may be frozen


def _in_a_hurry(error: BaseException | None) -> bool:
    return error is not None and _HURRY in error.__dict__


def _wait_for_kill(of: Ending) -> None:
    try:
        of._kill().get(timeout=_KILL_LIMIT)
    except TimeoutError:
        pass  # the kernel has it


async def _await_kill(of: Ending) -> None:
    import asyncio

    await asyncio.wait([of._kill().as_asyncio()], timeout=_KILL_LIMIT)


def _tell(of: Ending, error: BaseException | None) -> None:
    limit = runtime.limit("process_exit_timeout")
    again = " again" if isinstance(error, KeyboardInterrupt) else ""
    way_out = f"; Ctrl-C{again} {of._at_interrupt}" if _hears_interrupts() else ""
    _core.log_line(f"waiting up to {limit:g} s for {of._not_ended()} to end{way_out}")


def _hears_interrupts() -> bool:
    if not runtime.is_root() or threading.current_thread() is not threading.main_thread():
        return False
    signal: Any = sys.modules.get("_signal")  # built in, and loaded with the interpreter
    return signal is None or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
