"""The end of a script that waits for something real: of its main thread, which nobody else can give up."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from monarch import _core
from monarch._running import unhandled


class Watch:
    """While the block runs. Begins in the main thread."""

    def __init__(self, seconds: float) -> None:
        self._signal = unhandled.take_signal(_is_over)
        _core.watch_patience(seconds, self._signal, _where)

    def end(self) -> None:
        """No error comes out of nowhere any more."""
        _core.end_patience()
        if self._signal:
            signal.signal(self._signal, signal.SIG_DFL)


def _is_over(*_: Any) -> None:
    """In the main thread, wherever it is."""
    _core.patience_is_over()


def _where() -> str:
    """What the main thread runs."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "a place that cannot be said"
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
