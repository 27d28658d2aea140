"""What every workload program shares: arguments, pinning, CPU accounting, the timing loop and the JSON line.

A workload program measures one system in one process tree of its own and prints one JSON line per row:

    {"row": "W1s", "system": "ray", "unit": "us", "value": 754.1, "p99": 990.2, "count": 1322,
     "cpu_us": 1210.0, "samples": [...]}

`value` is the round's figure (a median for latencies, a rate for throughput); `samples` are raw readings, thinned
evenly to at most SAMPLES_MAX. A row that cannot run prints {"row": ..., "error": "why"} instead. Standard library only:
this file is imported in every peer's venv.
"""

import argparse
import importlib
import json
import os
import time

BENCH_DIR = os.path.dirname(os.path.abspath(__file__))
SAMPLES_MAX = 400
WARM_CALLS = 200
WARM_SECONDS = 0.3
FEW, FEW_SECONDS = 5, 15.0
WARM_THROUGHPUT_SECONDS = 1.0

# One program per API: ours and the reference system are driven by the same lines.
SYSTEM_MODULES = {
    "limit": "limits.ring_limit",
    "ours": "systems.monarch_api",
    "torchmonarch": "systems.monarch_api",
    "ray": "systems.ray_actors",
    "mpi4py": "systems.mpi_ranks",
    "pyzmq": "systems.zmq_sockets",
}

# Starts a job of MPI; -np and the program follow.
MPIRUN = [
    "mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl",
    "self,vader",
    "--mca",
    "pml",
    "ob1",
]

# Which cores the controller and the workers get; None leaves the choice to the kernel.
PLACEMENTS = {"two": ({0}, {1}), "one": ({0}, {0}), "free": (None, None)}


class WrongAnswer(Exception):
    """A system answered, but not what was asked: the row is void."""


class NotOffered(Exception):
    """The system has no such operation; the row is reported as not run."""


def expect(answer, expected):
    if answer != expected:
        raise WrongAnswer(f"got {str(answer)[:80]}, expected {str(expected)[:80]}")


# ---- arguments and the system under test


def parse_arguments(rows):
    """Arguments of a workload program that knows `rows`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=sorted(SYSTEM_MODULES), default="ours")
    parser.add_argument("--rows", default=",".join(rows), help="comma separated; known: " + " ".join(rows))
    parser.add_argument("--seconds", type=float, default=1.0, help="measured time per row")
    parser.add_argument("--placement", choices=sorted(PLACEMENTS), default="two")
    arguments = parser.parse_args()
    arguments.rows = arguments.rows.split(",")
    unknown = set(arguments.rows) - set(rows)
    if unknown:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    return arguments


def load_system(name):
    """Imports the system's adapter and returns its System object. Worker processes must find this folder too."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if BENCH_DIR not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([BENCH_DIR] + [entry for entry in known if entry])
    return importlib.import_module(SYSTEM_MODULES[name]).System()


def run_rows(arguments, system, measures):
    """Runs each wanted row and prints its line. `measures` maps a row to a function that returns emit's keywords."""
    for row in arguments.rows:
        try:
            emit(row, arguments.system, **measures[row]())
        except NotOffered as reason:
            print(
                json.dumps({"row": row, "system": arguments.system, "error": f"not offered: {reason}"}),
                flush=True,
            )
        except WrongAnswer as reason:
            print(
                json.dumps({"row": row, "system": arguments.system, "error": f"WRONG ANSWER: {reason}"}),
                flush=True,
            )
        except Exception as error:  # One broken row must not hide the others of this program.
            text = " ".join(str(error).split())[:200]
            print(
                json.dumps({"row": row, "system": arguments.system, "error": f"{type(error).__name__}: {text}"}),
                flush=True,
            )


def emit(row, system, unit, value, samples=(), **extra):
    line = {"row": row, "system": system, "unit": unit, "value": value, **extra, "samples": thin(samples)}
    print(json.dumps(line), flush=True)


def thin(samples):
    step = max(1, -(-len(samples) // SAMPLES_MAX))
    return [round(sample, 4) for sample in samples[::step]]


# ---- placement


def pin_process(cpus):
    """Pins all threads of this process; threads made later inherit it. None means: leave it."""
    if cpus is None:
        return
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:
            pass  # The thread has just ended.


class Stage:
    """Brings a system up, placed, when a row first needs it: one mesh at a time, of one kind of actor."""

    def __init__(self, system, placement):
        self.system, self.placement, self.up = system, placement, None

    def ready(self, procs=1, kind="sync"):
        if self.up == (procs, kind):
            return
        self.end()
        self.system.start(procs, kind)
        self.system.place(self.placement)
        self.up = (procs, kind)

    def end(self):
        if self.up:
            self.system.unplace()
            self.system.stop()
            self.up = None


# ---- what the processes of W16 print

PRINTED_BYTES = 100


def print_lines(count):
    """Prints `count` numbered lines of PRINTED_BYTES, newline included, as fast as it can; -> seconds."""
    width = PRINTED_BYTES - 1
    start = time.perf_counter()
    for number in range(count):
        print(f"{number:0{width}}")
    return time.perf_counter() - start


def print_times(count, gap_s):
    """Prints the monotonic clock, in ns, `count` times with silence in between."""
    for _ in range(count):
        time.sleep(gap_s)
        print(time.monotonic_ns())


# ---- CPU time


def process_tree(root):
    """`root` and all its descendants."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(children.get(pid, ()))
    return found


class CpuMeter:
    """CPU time that this process, its descendants and `extra_pids` use from now on.

    The tree is walked once, before the first reading: walking /proc costs milliseconds of CPU itself. Processes
    that come later are not seen, nor is what a thread had used that ended before the last reading.
    """

    def __init__(self, extra_pids=(), without=()):
        self.extra_pids, self.without = extra_pids, without
        self.start()

    def start(self):
        self.pids = {*process_tree(os.getpid()), *self.extra_pids} - {*self.without}
        self.before = self.read()

    def read(self):
        total_ns = 0
        for pid in self.pids:
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                        total_ns += int(file.read().split()[0])
            except OSError:
                continue
        return total_ns

    def spent_us(self):
        return (self.read() - self.before) / 1e3


# ---- timing


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def latency_summary(times_ns, cpu_us, unit="us"):
    scale = {"us": 1e3, "ms": 1e6}[unit]
    times = [time_ns / scale for time_ns in times_ns]
    ordered = sorted(times)
    return {
        "unit": unit,
        "value": median(ordered),
        "p99": percentile(ordered, 0.99),
        "count": len(times),
        "cpu_us": cpu_us / len(times),
        "samples": times,
    }


def latency_of_few(measure, seconds):
    """As time_calls, for what is set up anew each time: `measure()` -> ms. FEW at the least, unless they are slow."""
    measure()
    times, start = [], time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or len(times) < FEW:
        if passed > FEW_SECONDS and times:
            break
        times.append(measure())
    ordered = sorted(times)
    return {
        "unit": "ms",
        "value": median(ordered),
        "p99": percentile(ordered, 0.99),
        "count": len(times),
        "samples": times,
    }


def rate_summary(rates, calls, elapsed_ns, cpu_us):
    return {
        "unit": "/s",
        "value": calls * 1e9 / elapsed_ns,
        "count": calls,
        "cpu_us": cpu_us / calls,
        "samples": rates,
    }


def time_calls(call, expected, seconds, pids=(), unit="us", pause=0.0):
    """Times single calls; every answer is compared. `pause` sleeps between calls (a cold caller)."""
    clock = time.perf_counter_ns
    warm_until = clock() + int(WARM_SECONDS * 1e9)
    for _ in range(3 if pause else WARM_CALLS):
        expect(call(), expected)
        if clock() > warm_until:
            break
    times = []
    meter = CpuMeter(pids)
    end = clock() + int(seconds * 1e9)
    while clock() < end or len(times) < 5:
        if pause:
            time.sleep(pause)
        start = clock()
        answer = call()
        stop = clock()
        if answer != expected:
            expect(answer, expected)
        times.append(stop - start)
    return latency_summary(times, meter.spent_us(), unit)


async def time_awaits(call, expected, seconds, pids=()):
    """As time_calls, for a function that returns an awaitable."""
    clock = time.perf_counter_ns
    warm_until = clock() + int(WARM_SECONDS * 1e9)
    for _ in range(WARM_CALLS):
        expect(await call(), expected)
        if clock() > warm_until:
            break
    times = []
    meter = CpuMeter(pids)
    end = clock() + int(seconds * 1e9)
    while clock() < end or len(times) < 5:
        start = clock()
        answer = await call()
        stop = clock()
        if answer != expected:
            expect(answer, expected)
        times.append(stop - start)
    return latency_summary(times, meter.spent_us())


def time_batches(batch, seconds, pids=()):
    """Calls per second of `batch()`, which makes calls, checks their answers and returns how many they were."""
    clock = time.perf_counter_ns
    warm_until = clock() + int(WARM_SECONDS * 1e9)
    for _ in range(WARM_CALLS):
        batch()
        if clock() > warm_until:
            break
    rates, calls = [], 0
    meter = CpuMeter(pids)
    begin = start = clock()
    end = begin + int(seconds * 1e9)
    while start < end or len(rates) < 3:
        count = batch()
        stop = clock()
        rates.append(count * 1e9 / (stop - start))
        calls += count
        start = stop
    return rate_summary(rates, calls, start - begin, meter.spent_us())


async def time_async_batches(batch, seconds, pids=()):
    """As time_batches, for a coroutine function."""
    clock = time.perf_counter_ns
    warm_until = clock() + int(WARM_SECONDS * 1e9)
    for _ in range(WARM_CALLS):
        await batch()
        if clock() > warm_until:
            break
    rates, calls = [], 0
    meter = CpuMeter(pids)
    begin = start = clock()
    end = begin + int(seconds * 1e9)
    while start < end or len(rates) < 3:
        count = await batch()
        stop = clock()
        rates.append(count * 1e9 / (stop - start))
        calls += count
        start = stop
    return rate_summary(rates, calls, start - begin, meter.spent_us())


def throughput(send, size, seconds):
    """GB/s of the median of what `send()` does, which is checked there, once it is warm."""
    times, end = [], None
    warm_until = time.perf_counter() + min(WARM_THROUGHPUT_SECONDS, 2 * seconds)
    while end is None or time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter_ns()
        send()
        times.append(time.perf_counter_ns() - start)
        if end is None and len(times) >= 3 and time.perf_counter() > warm_until:
            times, end = [], time.perf_counter() + seconds
    return {
        "unit": "GB/s",
        "value": size / median(times),
        "count": len(times),
        "samples": [size / time_ns for time_ns in times],
    }


def time_cold_read(get_handle, read, array, right):
    """-> ms of get_handle(), and of read(handle, array), after which `array` has to be as `right` is."""
    start = time.perf_counter_ns()
    handle = get_handle()
    between = time.perf_counter_ns()
    read(handle, array)
    end = time.perf_counter_ns()
    expect(bool((array == right).all()), True)
    return (between - start) / 1e6, (end - between) / 1e6


def idle_burn(pids=()):
    """CPU that the whole process tree burns over the second after the first idle second, in ms per s."""
    time.sleep(1.0)
    others = CpuMeter(pids, without=[os.getpid()])
    own_ns, start = time.process_time_ns(), time.perf_counter()  # not what looking at the others costs
    time.sleep(1.0)
    own_ms = (time.process_time_ns() - own_ns) / 1e6
    burnt = (own_ms + others.spent_us() / 1e3) / (time.perf_counter() - start)
    return {"unit": "ms/s", "value": burnt, "count": 1, "samples": [burnt]}
