"""W18, the soak of the benchmarks: a share of an hour's work, after which nothing may have grown, and nothing be lost.

    workload_soak.py --share 0.05 LIBRARY

All of it (``--share 1``): 100 million messages to a C++ actor of ``LIBRARY`` (examples/cpp/lib/counters.cc), 20 million
calls (one by one, 64 at a time, with arrays of 1 MiB, that raise), 100,000 actors and 2,000 processes that are made and
ended, 1,000 that are killed, 10,000 buffers that are registered, read and dropped. Between two looks, after a quarter
of it and at its end, neither this process nor its worker may have grown.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import census
import numpy
from verdict import LIMIT, Wrong, tally

import monarch.actor
from monarch import cpp
from monarch.actor import Actor, ActorError, ProcMesh, SupervisionError, endpoint, this_host
from monarch.rdma import RDMABuffer

TURNS = 40
WARM_UP = TURNS // 4
WHOLE = {
    "messages": 100_000_000, "calls": 20_000_000, "actors": 100_000, "processes": 2_000, "kills": 1_000,
    "buffers": 10_000,
}  # fmt: skip
WINDOW = 64  # calls at a time
LARGE_EVERY, RAISES_EVERY = 200, 20  # of the calls
BLOCK = numpy.arange(1 << 20, dtype="u1")
BUFFER = 64 << 10


class Worker(Actor):
    def __init__(self) -> None:
        self.before: census.Census | None = None

    @endpoint
    def add(self, one: int, other: int) -> int:
        return one + other

    @endpoint
    def total(self, array: numpy.ndarray) -> int:
        return int(array[:: 1 << 12].sum())

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def buffer(self, number: int) -> tuple[RDMABuffer, int]:
        array = numpy.full(BUFFER, number % 256, "u1")
        return RDMABuffer(array), number % 256

    @endpoint
    def look(self, rounds: int) -> census.Census:
        """The first time: how it is; from then on whether it is as it was."""
        if self.before is None:
            self.before = census.take()
        return census.check(self.before, rounds)


class Soak:
    def __init__(self, share: float, library: str) -> None:
        self.whole = {what: round(count * share) for what, count in WHOLE.items()}
        self.procs = this_host().spawn_procs({"gpus": 1})
        self.worker = self.procs.spawn("worker", Worker)
        self.counter = self.procs.spawn("counter", cpp.load(library).Counter, 0)
        self.counted = 0
        self.times_us: list[float] = []  # of calls one by one, by turn: the median

    def turn(self, number: int) -> None:
        for what, count in self.whole.items():
            now = count * (number + 1) // TURNS - count * number // TURNS
            getattr(self, what)(now)
            tally.add(what, now)

    def messages(self, count: int) -> None:
        add = self.counter.add
        for _ in range(count):
            add.broadcast(1)
        self.counted += count
        if (seen := add.call_one(0).get(LIMIT)) != self.counted:
            raise Wrong(f"of {self.counted} messages {seen} have arrived")

    def calls(self, count: int) -> None:
        add = self.worker.add
        times = []
        for number in range(count // 2):
            began = time.perf_counter()
            if add.call_one(number, 1).get(LIMIT) != number + 1:
                raise Wrong("a wrong sum")
            times.append(time.perf_counter() - began)
        self.times_us.append(sorted(times)[len(times) // 2] * 1e6)
        for number in range(count // 2, count, WINDOW):
            futures = [add.call_one(number, each) for each in range(WINDOW)]
            if [future.get(LIMIT) for future in futures] != [number + each for each in range(WINDOW)]:
                raise Wrong("wrong sums")
        for _ in range(count // LARGE_EVERY):
            if self.worker.total.call_one(BLOCK).get(LIMIT) != int(BLOCK[:: 1 << 12].sum()):
                raise Wrong("a large argument has changed")
        for number in range(count // RAISES_EVERY):
            try:
                self.worker.fail.call_one(f"text {number}").get(LIMIT)
                raise Wrong("an endpoint that raises has answered")
            except ActorError as error:
                if f"text {number}" not in str(error):
                    raise Wrong(f"{error} is not that of text {number}") from error

    def actors(self, count: int) -> None:
        for _ in range(count):
            actor = self.procs.spawn("short", Worker)
            if actor.add.call_one(1, 2).get(LIMIT) != 3:
                raise Wrong("a wrong sum of a new actor")
            actor.stop().get(LIMIT)

    def processes(self, count: int) -> None:
        for _ in range(count):
            self._process()[0].stop().get(LIMIT)

    def kills(self, count: int) -> None:
        for _ in range(count):
            procs, actor = self._process()
            os.kill(actor.pid.call_one().get(LIMIT), signal.SIGKILL)
            try:
                while actor.add.call_one(1, 2).get(LIMIT) == 3:
                    pass
            except SupervisionError:
                procs.stop().get(LIMIT)

    def _process(self) -> tuple[ProcMesh, Worker]:
        procs = this_host().spawn_procs({"gpus": 1})
        actor = procs.spawn("short", Worker)
        if actor.add.call_one(1, 2).get(LIMIT) != 3:
            raise Wrong("a wrong sum of a new process")
        return procs, actor

    def buffers(self, count: int) -> None:
        into = numpy.empty(BUFFER, "u1")
        for number in range(count):
            buffer, value = self.worker.buffer.call_one(number).get(LIMIT)
            buffer.read_into(into).get(LIMIT)
            if not (into == value).all():
                raise Wrong("what was read of a buffer is something else")
            buffer.drop().get(LIMIT)

    def rounds(self) -> int:
        """Those of which something stays, by ``census.KIB_A_ROUND``: processes."""
        return self.whole["processes"] + self.whole["kills"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("library")
    options = parser.parse_args()
    monarch.actor.unhandled_fault_hook = lambda failure: None  # of those that are killed
    soak = Soak(options.share, options.library)
    for number in range(WARM_UP):
        soak.turn(number)
    there_before = soak.worker.look.call_one(0).get(LIMIT)
    before = census.take()
    for number in range(WARM_UP, TURNS):
        soak.turn(number)
    after = census.check(before, soak.rounds())
    there = soak.worker.look.call_one(soak.rounds()).get(LIMIT)
    tenth = TURNS // 10
    first, last = (sorted(times)[tenth // 2] for times in (soak.times_us[:tenth], soak.times_us[-tenth:]))
    print(f"{tally}\nleft: {after} (before: {before})\nworker: {there} (before: {there_before})")
    print(f"a call: {first:.2f} us at first, {last:.2f} at last")


if __name__ == "__main__":
    main()
