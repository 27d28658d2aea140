"""W20: hosts that are reached over TCP, with TLS, on loopback addresses of one machine. Ours only.

s      a call from the script to an actor on another host
x      a call between actors on two hosts, neither of which is the script's
c_N    a call to 8 processes on N hosts, and all answers; c_64: to a process on each of 64
t_S    a call with an array of size S, to one process of another host, which looks at two bytes
p_S_N  a call with such an array to 8 processes on N hosts; what arrives, in all processes together
a_N    attaching to N hosts that wait, a process and an actor on each, and all first answers
d      64 daemons, until all listen
m      the resident memory of a daemon that waits
r      what all processes of a host hold that runs one actor, each its share (PSS)
"""

import os
import sys
import tempfile
import time

import numpy

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import (  # noqa: E402
    expect,
    latency_of_few,
    median,
    parse_arguments,
    run_rows,
    throughput,
    time_calls,
)
from hosts import Daemons  # noqa: E402
from monarch.actor import Actor, attach_to_workers, current_rank, endpoint  # noqa: E402

SIZES = {"1M": 1 << 20, "64M": 1 << 26}
PROCS, MANY = 8, 64


class Worker(Actor):
    def __init__(self):
        self.rank = current_rank().rank

    @endpoint
    def add_rank(self, x):
        return x + self.rank

    @endpoint
    def look(self, array):
        return int(array[0]) + 256 * int(array[-1])

    @endpoint
    def call_for(self, other, seconds):
        """Times of calls to another one, for so long."""
        rank = other.add_rank.call_one(0).get()
        line = time_calls(lambda: other.add_rank.call_one(7).get(), 7 + rank, seconds)
        del line["cpu_us"]  # of this process only
        return line


class Stage:
    """One set of daemons, and one mesh of processes on some of them, at a time."""

    def __init__(self):
        self.daemons = self.hosts = self.shape = self.workers = None

    def there(self, count):
        """At least so many daemons."""
        if self.daemons is None or len(self.daemons.processes) < count:
            self.end()
            self.daemons = Daemons(count)
        return self.daemons

    def mesh(self, hosts, procs):
        """One actor in each of so many processes on each of so many hosts."""
        if self.shape != (hosts, procs):
            self.end_mesh()
            self.hosts = self.there(hosts).attach(hosts)
            self.workers = self.hosts.spawn_procs({"procs": procs}).spawn("worker", Worker)
            expect(self.call_all(7), [7 + rank for rank in range(hosts * procs)])
            self.shape = hosts, procs
        return self.workers

    def call_all(self, x):
        return list(self.workers.add_rank.call(x).get().values())

    def end_mesh(self):
        if self.hosts is not None:
            self.hosts.stop().get()
            self.hosts = self.shape = self.workers = None

    def end(self):
        self.end_mesh()
        if self.daemons is not None:
            self.daemons.end()
            self.daemons = None


def of_all(values, unit):
    return {"unit": unit, "value": median(values), "count": len(values), "samples": values}


def first_answers(addresses):
    """-> ms of all of it, with the interpreter warm and monarch imported."""
    start = time.perf_counter()
    hosts = attach_to_workers(workers=addresses)
    workers = hosts.spawn_procs().spawn("worker", Worker)
    answers = list(workers.add_rank.call(1).get().values())
    elapsed_ms = (time.perf_counter() - start) * 1e3
    expect(answers, [1 + rank for rank in range(len(addresses))])
    hosts.stop().get()
    return elapsed_ms


def main():
    stage = Stage()
    transfers = {f"W20t_{size}": size for size in SIZES}
    casts = {f"W20p_{size}_{hosts}": (size, hosts) for size in SIZES for hosts in (1, 4)}
    calls = {f"W20c_{hosts}": hosts for hosts in (1, 4, MANY)}
    rows = ["W20s", "W20x", "W20c_1", "W20c_4", *transfers, *casts, "W20a_4", "W20d", "W20m", "W20a_64"]
    rows += ["W20c_64", "W20r"]
    arguments = parse_arguments(rows)
    seconds = arguments.seconds

    def one():
        first = stage.mesh(1, PROCS).slice(procs=0)
        return time_calls(lambda: first.add_rank.call_one(7).get(), 7, seconds)

    def between():
        workers = stage.mesh(4, PROCS // 4).flatten("all")
        return workers.slice(all=0).call_for.call_one(workers.slice(all=PROCS - 1), seconds).get()

    def call(hosts):
        procs = 1 if hosts == MANY else PROCS // hosts
        stage.mesh(hosts, procs)
        return time_calls(lambda: stage.call_all(7), [7 + rank for rank in range(hosts * procs)], seconds, unit="ms")

    def transfer(size):
        return send_arrays(stage.mesh(1, PROCS).slice(procs=slice(0, 1)), size, 1)

    def cast(size, hosts):
        return send_arrays(stage.mesh(hosts, PROCS // hosts), size, PROCS)

    def send_arrays(workers, size, count):
        array = numpy.random.default_rng(4711).integers(0, 256, SIZES[size], dtype="u1")
        turn = 0

        def send():
            nonlocal turn
            turn += 1
            array[0], array[-1] = turn % 251, turn % 241
            answers = list(workers.look.call(array).get().values())
            expect(answers, [turn % 251 + 256 * (turn % 241)] * count)

        return throughput(send, SIZES[size] * count, seconds)

    def attach(hosts):
        stage.end_mesh()
        addresses = stage.there(hosts).addresses[:hosts]
        return latency_of_few(lambda: first_answers(addresses), seconds)

    def start():
        def measure():
            stage.end()
            return stage.there(MANY).took_ms

        return latency_of_few(measure, seconds)

    def resident():
        stage.end_mesh()
        return of_all(stage.there(MANY).resident_mb(), "MB")

    def held():
        stage.mesh(MANY, 1)
        return of_all(stage.daemons.held_mb(), "MB")

    measures = {"W20s": one, "W20x": between}
    measures |= {row: lambda hosts=hosts: call(hosts) for row, hosts in calls.items()}
    measures |= {row: lambda size=size: transfer(size) for row, size in transfers.items()}
    measures |= {row: lambda of=of: cast(*of) for row, of in casts.items()}
    measures |= {"W20a_4": lambda: attach(4), "W20a_64": lambda: attach(MANY), "W20d": start}
    measures |= {"W20m": resident, "W20r": held}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONARCH_TOKEN_FILE"] = os.path.join(folder, "token")
        try:
            run_rows(arguments, None, measures)
            stage.end()
        finally:
            if stage.daemons is not None:  # they would outlive this, and hold its streams open
                stage.daemons.end()


main()
