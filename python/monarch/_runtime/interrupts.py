"""Ctrl-C in the middle of what must not be half done."""

from __future__ import annotations

import _signal
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def uninterrupted(function: Callable[[], T]) -> T:
    """Calls it. Ctrl-C is raised, as by whatever handler the program has, before it begins or when it has ended."""
    handler = _signal.getsignal(_signal.SIGINT)
    if not callable(handler):  # it is ignored, or ends the process at once
        return function()
    came: list[int] = []
    try:
        _signal.signal(_signal.SIGINT, lambda number, _: came.append(number))
    except ValueError:
        return function()  # handlers run on the main thread only, and this is another
    try:
        return function()
    finally:
        _signal.signal(_signal.SIGINT, handler)
        if came:
            _signal.raise_signal(_signal.SIGINT)
