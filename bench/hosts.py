"""Hosts on loopback addresses of this machine: a monarch-hostd each. Of ours only (W13h, W20)."""

import os
import re
import subprocess
import sys
import time

from harness import expect, process_tree
from monarch import _core
from monarch.actor import attach_to_workers

HOSTD = os.path.join(os.path.dirname(_core.__file__), "bin", "monarch-hostd")


class Daemons:
    """So many hosts that wait; a mesh of hosts of any number of the first of them."""

    def __init__(self, count):
        command = [HOSTD, "--python", sys.executable]
        begin = time.perf_counter()
        self.processes = [
            subprocess.Popen([command[0], f"tcp://127.0.1.{number + 1}:0", *command[1:]], stdout=subprocess.PIPE)
            for number in range(count)
        ]
        self.addresses = [process.stdout.readline().decode().strip() for process in self.processes]
        self.took_ms = (time.perf_counter() - begin) * 1e3
        expect(all(self.addresses), True)

    def attach(self, count):
        return attach_to_workers(workers=self.addresses[:count])

    def resident_mb(self):
        return [kib(process.pid, "status", "VmRSS") * 1024 / 1e6 for process in self.processes]

    def held_mb(self):
        """Of each host: its daemon and all that this has started."""
        return [
            sum(kib(pid, "smaps_rollup", "Pss") for pid in process_tree(process.pid)) * 1024 / 1e6
            for process in self.processes
        ]

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
            process.stdout.close()


def kib(pid, file, name):
    with open(f"/proc/{pid}/{file}") as text:
        return int(re.search(rf"^{name}:\s*(\d+) kB", text.read(), re.MULTILINE)[1])
