"""Deadlines: when a caller gives up, and with it everything that was asked for on its behalf."""

from __future__ import annotations

import time
from contextvars import ContextVar, Token

from monarch import _core

__all__ = ["deadline"]

current: ContextVar[int | None] = ContextVar("monarch_deadline", default=None)  # ns on the monotonic clock


class deadline:
    """``with deadline(5):`` gives what is called inside 5 s, all in all.

    Calls that have not been answered by then raise ``DeadlineExceeded``; so do later calls in the block, at once, and
    ``get()`` there. The deadline goes along with nested calls: an async endpoint is cancelled when it has passed, a
    sync one is not interrupted, but its further calls raise at once and its answer is dropped; a message whose
    deadline has passed in the mailbox is not handled. One-way messages have none, but do not wait for room longer.
    Blocks nest; the earliest deadline holds. In asyncio code it belongs to the task. One call alone:
    ``endpoint.options(deadline=5)``.

    Args:
        seconds: how long, as a positive finite number. ``ValueError`` for others, ``TypeError`` for what is no number.
    """

    __slots__ = ("_seconds", "_tokens")

    def __init__(self, seconds: float) -> None:
        self._seconds = check_seconds(seconds)
        self._tokens: list[Token[int | None]] = []

    def __enter__(self) -> None:
        _core.use_deadlines()
        ends = time.monotonic_ns() + int(self._seconds * 1e9)
        outer = current.get()
        self._tokens.append(current.set(ends if outer is None else min(ends, outer)))

    def __exit__(self, *_: object) -> None:
        current.reset(self._tokens.pop())


def check_seconds(seconds: float, what: str = "a deadline") -> float:
    """``seconds``, or ``ValueError`` if that is no time in which something could be done."""
    if isinstance(seconds, str) or not hasattr(seconds, "__float__"):
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}")
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{what} is a positive, finite number of seconds, not {seconds!r}")
    return min(float(seconds), 1e9)
