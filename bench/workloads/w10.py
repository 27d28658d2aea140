"""W10: a process dies while a call to it is pending, until its caller holds the error that says how. Ours only.

k  SIGKILL by another process        s  SIGSEGV by itself        x  os._exit(7)
each with a victim of 30 MB (an interpreter as it is) and of 1 GiB; n: SIGKILL of a process that a worker has started;
32: so many at once, until the last of their callers knows.

The moment of death is on the machine's monotonic clock, in a page that all share, written just before it.
"""

import ctypes
import mmap
import os
import signal
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import expect, median, parse_arguments, percentile, run_rows  # noqa: E402
from monarch.actor import Actor, SupervisionError, endpoint, this_host  # noqa: E402

GIB = 1 << 30
QUIET_S = 0.05
ENDS = {"k": "Killed(sig=9)", "s": "Segmentation fault(sig=11)", "x": "non-zero code 7"}


class Stamp:
    """A time that processes share."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def set(self):
        self.page[:8] = struct.pack("q", time.monotonic_ns())

    def ms_since(self):
        return (time.monotonic_ns() - struct.unpack("q", self.page[:8])[0]) / 1e6


class Victim(Actor):
    def __init__(self, path):
        self.stamp, self.ballast = Stamp(path), None

    @endpoint
    def grow(self, size):
        self.ballast = bytearray(b"\1") * size
        return os.getpid()

    @endpoint
    def die(self, how):
        time.sleep(QUIET_S)
        self.stamp.set()
        if how == "x":
            os._exit(7)
        if how == "s":
            ctypes.string_at(0)
        time.sleep(1000)


class Killer(Actor):
    def __init__(self, path):
        self.stamp = Stamp(path)

    @endpoint
    def kill(self, pids):
        time.sleep(QUIET_S)
        self.stamp.set()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


class Boss(Actor):
    @endpoint
    def spawn(self, path):
        self.procs = this_host().spawn_procs()
        return self.procs.spawn("victim", Victim, path)


def wait_for(future, text):
    try:
        future.get()
    except SupervisionError as error:
        return str(error), text
    return "no error", text


def main():
    rows = [f"W10{how}_{size}" for how in "ksx" for size in ("30M", "1G")] + ["W10n", "W10_32"]
    arguments = parse_arguments(rows)
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "stamp")
    with open(path, "wb") as file:
        file.write(bytes(mmap.PAGESIZE))
    stamp = Stamp(path)
    killer = this_host().spawn_procs().spawn("killer", Killer, path)

    def one(how, victim, size):
        pid = victim.grow.call_one(size).get()
        future = victim.die.call_one(how)
        if how == "k":
            killer.kill.broadcast([pid])
        text, expected = wait_for(future, ENDS[how])
        elapsed_ms = stamp.ms_since()
        expect(expected in text and f"pid {pid}" in text, True)
        return elapsed_ms

    def alone(how, size):
        procs = this_host().spawn_procs()
        elapsed_ms = one(how, procs.spawn("victim", Victim, path), size)
        procs.stop().get()
        return elapsed_ms

    def nested():
        procs = this_host().spawn_procs()
        elapsed_ms = one("k", procs.spawn("boss", Boss).spawn.call_one(path).get(), 0)
        procs.stop().get()
        return elapsed_ms

    def many(count=32):
        procs = this_host().spawn_procs(per_host={"gpus": count})
        victims = procs.spawn("victim", Victim, path)
        pids = list(victims.grow.call(0).get().values())
        futures = [victims.slice(gpus=rank).die.call_one("k") for rank in range(count)]
        killer.kill.broadcast(pids)
        texts = [wait_for(future, ENDS["k"])[0] for future in futures]
        elapsed_ms = stamp.ms_since()
        expect(all(f"pid {pid}" in text and ENDS["k"] in text for pid, text in zip(pids, texts)), True)
        procs.stop().get()
        return elapsed_ms

    def rounds(measure):
        def row():
            measure()
            times, until = [], time.perf_counter() + arguments.seconds
            while len(times) < 5 or time.perf_counter() < until:
                times.append(measure())
            ordered = sorted(times)
            return {
                "unit": "ms",
                "value": median(ordered),
                "p99": percentile(ordered, 0.99),
                "count": len(times),
                "samples": times,
            }

        return row

    measures = {}
    for how in "ksx":
        measures[f"W10{how}_30M"] = rounds(lambda how=how: alone(how, 0))
        measures[f"W10{how}_1G"] = rounds(lambda how=how: alone(how, GIB))
    measures["W10n"], measures["W10_32"] = rounds(nested), rounds(many)
    run_rows(arguments, None, measures)


main()
