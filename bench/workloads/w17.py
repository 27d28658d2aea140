"""W17: the control plane while everything else is busy. Ours only.

Meanwhile: 64 processes print LINE_HZ lines of 100 B a second each, 1 GiB after the other moves from one process to
another in arrays of 64 MiB, and an actor computes in pure Python. One after the other, with short pauses:

p  a call to an actor that is idle, in a process of its own     m  status of the 64: which of them are stopped
u  whether the 64 are up, which asks each of them               d  stacks of the process that is busy
a  stacks of all processes
s  stop() of a busy process without grace, until it has ended and the caller of its actor knows
b  a byte to a bare process and back through two pipes: what the scheduler takes

The value is the 99th percentile; the median stands beside it.
"""

import os
import subprocess
import sys
import time

import numpy

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import PRINTED_BYTES, WrongAnswer, expect, median, parse_arguments, percentile, run_rows  # noqa: E402
from monarch.actor import Actor, SupervisionError, dump_stacks, endpoint, this_host  # noqa: E402
from monarch.config import configured  # noqa: E402

PRINTERS, LINE_HZ = 64, 100
CHUNK_BYTES, GIB = 64 << 20, 1 << 30
LENGTH = 40  # times the measured time of a row, for all rows together
PAUSE_S = 0.005
# Fork servers keep its standard input open: there is no end of file.
COUNT_LINES = """
import os, signal, sys
def end(*_):
    print(count, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
count = 0
while data := os.read(0, 1 << 16):
    count += data.count(b"\\n")
"""
ECHO = "import os\nwhile os.write(1, os.read(0, 1)): pass"


class Load(Actor):
    def __init__(self):
        self.received_bytes = 0

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def print_for_ever(self):
        number = 0
        while True:
            print(f"{number:0{PRINTED_BYTES - 1}}", flush=True)
            number += 1
            time.sleep(1 / LINE_HZ)

    @endpoint
    def compute(self):
        while True:
            pass

    @endpoint
    def take(self, array):
        self.received_bytes += array.nbytes if array[0] == array[-1] == 1 else 0

    @endpoint
    def received(self):
        return self.received_bytes

    @endpoint
    def send_for_ever(self, sink):
        array = numpy.ones(CHUNK_BYTES, "u1")
        while True:
            sink.take.call_one(array).get()


class Output:
    """What is printed goes to a bare process that counts lines, meanwhile."""

    def __enter__(self):
        sys.stdout.flush()
        self.kept = os.dup(1)
        self.counter = subprocess.Popen(
            [sys.executable, "-c", COUNT_LINES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.dup2(self.counter.stdin.fileno(), 1)
        return self

    def __exit__(self, *_):
        os.dup2(self.kept, 1)
        os.close(self.kept)
        self.counter.terminate()
        self.lines = int(self.counter.communicate()[0])


def spawn(count=1):
    procs = this_host().spawn_procs(per_host={"procs": count})
    actors = procs.spawn("load", Load)
    actors.pid.call().get()
    return procs, actors


class Operations:
    """Each returns when it has been done, and was right."""

    def __init__(self):
        self.printers, printing = spawn(PRINTERS)
        self.movers, moving = spawn(2)
        self.busy_procs, self.busy = spawn()
        self.idle_procs, self.idle = spawn()
        self.idle_pid = self.idle.pid.call_one().get()
        self.bare = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.sink = moving.slice(procs=1)
        self.under_way = [
            self.busy.compute.call_one(),
            printing.print_for_ever.call(),
            moving.slice(procs=0).send_for_ever.call_one(self.sink),
        ]
        self.since = time.perf_counter()

    def moved(self):
        return self.sink.received.call_one().get()

    def ping(self):
        expect(self.idle.pid.call_one().get(), self.idle_pid)

    def status(self):
        expect(self.printers.stopped_ranks(), [])

    def up(self):
        expect(self.printers.initialized.get(), True)

    def dump(self):
        expect("compute" in str(dump_stacks(self.busy_procs).get()), True)

    def dump_all(self):
        text = str(dump_stacks().get())
        expect("compute" in text and "print_for_ever" in text and "send_for_ever" in text, True)

    def echo(self):
        os.write(self.bare.stdin.fileno(), b"x")
        expect(os.read(self.bare.stdout.fileno(), 1), b"x")

    def stop_one(self):
        """Only the stop is timed: -> ms"""
        procs, actors = spawn()
        future = actors.compute.call_one()
        dump_until(procs, "compute")
        start = time.perf_counter()
        with configured(process_exit_timeout="0s"):
            procs.stop().get()
        try:
            future.get()
        except SupervisionError:
            return (time.perf_counter() - start) * 1e3
        raise WrongAnswer("no error")

    def end(self):
        with configured(process_exit_timeout="0s"):
            for procs in (self.printers, self.movers, self.busy_procs, self.idle_procs):
                procs.stop().get()
        self.bare.stdin.close()
        self.bare.wait()


def dump_until(procs, text):
    while text not in str(dump_stacks(procs).get()):
        pass


def timed(operation):
    def once():
        start = time.perf_counter()
        operation()
        return (time.perf_counter() - start) * 1e3

    return once


def measure_all(seconds):
    """-> (times by row, facts about the load)"""
    with Output() as output:
        operations = Operations()
        turns = {
            "W17p": [timed(operations.ping)] * 10,
            "W17b": [timed(operations.echo)] * 10,
            "W17m": [timed(operations.status)] * 10,
            "W17u": [timed(operations.up)] * 4,
            "W17d": [timed(operations.dump)] * 4,
            "W17a": [timed(operations.dump_all)] * 2,
            "W17s": [operations.stop_one],
        }
        times = {row: [] for row in turns}
        try:
            while time.perf_counter() - operations.since < seconds or operations.moved() < GIB:
                for row, calls in turns.items():
                    for call in calls:
                        time.sleep(PAUSE_S)
                        times[row].append(call())
            moved, passed = operations.moved(), time.perf_counter() - operations.since
        finally:
            operations.end()
    return times, {"lines_per_s": output.lines / passed, "gb_per_s": moved / passed / 1e9}


class Together:
    """Measured once for all rows; so is what went wrong."""

    def __init__(self, measure):
        self.measure, self.found, self.error = measure, None, None

    def __call__(self):
        if self.found is None and self.error is None:
            try:
                self.found = self.measure()
            except Exception as error:
                self.error = error
        if self.error is not None:
            raise self.error
        return self.found


def main():
    rows = [f"W17{what}" for what in "pmudasb"]
    arguments = parse_arguments(rows)
    together = Together(lambda: measure_all(LENGTH * arguments.seconds))

    def row(name):
        def measure():
            times, facts = together()
            ordered = sorted(times[name])
            return {
                "unit": "ms",
                "value": percentile(ordered, 0.99),
                "p50": median(ordered),
                "count": len(ordered),
                **facts,
                "samples": times[name],
            }

        return measure

    run_rows(arguments, None, {name: row(name) for name in rows})


main()
