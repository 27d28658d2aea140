"""What dies at a known moment: for W10 and W19. As lean as it can be: each new worker imports it.

The moment is on the machine's monotonic clock, in a page that all share, written just before the death.
"""

import mmap
import os
import struct
import time

QUIET_S = 0.05  # everybody sleeps by then
KILLED, CRASHED, LEFT = "k", "s", "x"  # SIGKILL by another process, SIGSEGV by itself, os._exit(7)


class Stamp:
    """A time that processes share."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def set(self):
        self.page[:8] = struct.pack("q", time.monotonic_ns())

    def ms_since(self):
        return (time.monotonic_ns() - struct.unpack("q", self.page[:8])[0]) / 1e6


class Mortal:
    """What an actor does that is to die, in every system."""

    def __init__(self, path):
        self.stamp, self.ballast = Stamp(path), None

    def grow(self, size):
        """Writes to so much memory; -> its pid."""
        self.ballast = bytearray(b"\1") * size
        return os.getpid()

    def die(self, how):
        """By itself, or it waits until somebody kills it."""
        if how == KILLED:
            time.sleep(1000)
        if how == CRASHED:
            import ctypes
        time.sleep(QUIET_S)
        self.stamp.set()
        if how == LEFT:
            os._exit(7)
        ctypes.string_at(0)
