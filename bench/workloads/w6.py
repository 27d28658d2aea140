"""W6: a NumPy array as the argument of one call at a time; GB/s of payload, from the median call.

The array lies in ordinary memory and its first and last bytes change before each call, so that a stale or shared copy
is noticed. W6_<size>: the endpoint looks at the first and the last byte. W6s_<size>: it sums all 64-bit words.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import CpuMeter, Stage, expect, load_system, median, parse_arguments, percentile, run_rows  # noqa: E402

SIZES = {"64K": 1 << 16, "1M": 1 << 20, "64M": 1 << 26}
LARGE = 1 << 24
LARGE_WARM_SECONDS = 3.0  # an object store reaches its speed only when its memory has been used once


def measure_array(system, size, everything, seconds):
    import numpy

    send = system.array_sender(everything)
    array = numpy.random.default_rng(4711).integers(0, 256, size, dtype="u1")
    words = array.view("u8")
    middle = int(words[1:-1].sum())

    def expected():
        if everything:
            return (middle + int(words[0]) + int(words[-1])) % (1 << 64)
        return int(array[0]) + 256 * int(array[-1])

    times, turn, meter = [], 0, CpuMeter(system.pids())
    warm_until = time.perf_counter() + (LARGE_WARM_SECONDS if size >= LARGE else seconds / 2)
    end = None
    while end is None or time.perf_counter() < end or len(times) < 3:
        turn += 1
        array[0], array[-1] = turn % 251, turn % 241
        start = time.perf_counter_ns()
        answer = send(array)
        stop = time.perf_counter_ns()
        expect(answer, expected())
        if end is not None:
            times.append(stop - start)
        elif turn >= 5 and time.perf_counter() > warm_until:
            meter.start()
            end = time.perf_counter() + seconds
    cpu_us = meter.spent_us()
    ordered = sorted(times)
    return {
        "unit": "GB/s",
        "value": size / median(times),
        "p1": size / percentile(ordered, 0.99),
        "count": len(times),
        "cpu_us": cpu_us / len(times),
        "samples": [size / time_ns for time_ns in times],
    }


def main():
    rows = [f"{kind}_{size}" for size in SIZES for kind in ("W6", "W6s")]
    arguments = parse_arguments(rows)
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def measure(row):
        def run():
            stage.ready()
            kind, size = row.split("_")
            return measure_array(system, SIZES[size], kind == "W6s", arguments.seconds)

        return run

    run_rows(arguments, system, {row: measure(row) for row in rows})
    stage.end()


main()
