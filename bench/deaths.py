"""Who kills, in W10 and W19: a process of its own that is part of no system, whose moment is known (mortal.py)."""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time

from mortal import QUIET_S, Stamp


class Killer:
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
