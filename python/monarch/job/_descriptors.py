"""Descriptors that are waited for, also those from 1024 on, which ``select`` does not take."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable


def readable(fds: Iterable[int], limit_s: float | None = None) -> list[int]:
    """Those that can be read, or have ended, once there are some; none: not within ``limit_s`` (None: no limit)."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if limit_s is None else max(0.0, limit_s) * 1000)]


def write_all(fd: int, data: bytes) -> None:
    """Waits for room, also where somebody who shares the file, a terminal, say, has set ``O_NONBLOCK``."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
