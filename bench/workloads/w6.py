"""W6: a NumPy array as the argument of one call at a time; GB/s of payload, from the median call.

The array lies in ordinary memory and its first and last bytes change before each call, so that a stale or shared copy
is noticed. W6_<size>: the endpoint looks at the first and the last byte. W6s_<size>: it sums all 64-bit words.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import cpu_seconds, expect, load_system, median, parse_arguments, percentile, run_rows  # noqa: E402

SIZES = {"64K": 1 << 16, "1M": 1 << 20, "64M": 1 << 26}


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

    times, turn, cpu_s = [], 0, 0.0
    warm_until = time.perf_counter() + seconds / 4
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
        elif turn >= 2 and time.perf_counter() > warm_until:
            end = time.perf_counter() + seconds
            cpu_s = cpu_seconds(system.pids())
    cpu_s = cpu_seconds(system.pids()) - cpu_s
    ordered = sorted(times)
    return {"unit": "GB/s", "value": size / median(times), "p1": size / percentile(ordered, 0.99), "count": len(times),
            "cpu_us": cpu_s * 1e6 / len(times), "samples": [size / time_ns for time_ns in times]}


def main():
    rows = [f"{kind}_{size}" for size in SIZES for kind in ("W6", "W6s")]
    arguments = parse_arguments(rows)
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    started = False

    def measure(row):
        def run():
            nonlocal started
            if not started:
                system.start(1)
                system.place(arguments.placement)
                started = True
            kind, size = row.split("_")
            return measure_array(system, SIZES[size], kind == "W6s", arguments.seconds)

        return run

    run_rows(arguments, system, {row: measure(row) for row in rows})
    if started:
        system.stop()


main()
