"""Processes that die at a known moment: for W10 and W19. Standard library only, as harness.py.

The moment is on the machine's monotonic clock, in a page that all share, written just before the death.
"""

import ctypes
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
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
        time.sleep(QUIET_S)
        self.stamp.set()
        if how == LEFT:
            os._exit(7)
        ctypes.string_at(0)


class Killer:
    """A process of its own, part of no system, that kills others; with the stamp of when."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(bytes(mmap.PAGESIZE))
        self.file.flush()
        self.path = self.file.name
        self.stamp = Stamp(self.path)
        self.process = subprocess.Popen([sys.executable, __file__, self.path], stdin=subprocess.PIPE, text=True)

    def kill(self, pids):
        """In QUIET_S, all of them one after the other."""
        self.process.stdin.write(" ".join(map(str, pids)) + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.file.close()


def main():
    stamp = Stamp(sys.argv[1])
    for line in sys.stdin:
        pids = [int(word) for word in line.split()]
        time.sleep(QUIET_S)
        stamp.set()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
