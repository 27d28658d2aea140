"""W2: calls to one actor, many at a time; 64-byte payloads.

w, w1k  64 and 1,024 outstanding calls, then all results      g  asyncio.gather of 64 (async endpoint)
o       one-way sends for the measured time, then a barrier that counts what arrived
"""

import asyncio
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import (  # noqa: E402
    CpuMeter,
    Stage,
    expect,
    load_system,
    parse_arguments,
    rate_summary,
    run_rows,
    time_async_batches,
    time_batches,
)

ONE_WAY_CHUNK = 500


def one_way_flood(system, seconds):
    send, barrier = system.one_way()
    arrived = barrier()
    for _ in range(200):
        send()
    expect(barrier(), arrived + 200)
    arrived += 200
    sent = 0
    meter = CpuMeter(system.pids())
    start = time.perf_counter_ns()
    while time.perf_counter_ns() - start < seconds * 1e9:
        for _ in range(ONE_WAY_CHUNK):
            send()
        sent += ONE_WAY_CHUNK
    total = barrier()
    elapsed_ns, cpu_us = time.perf_counter_ns() - start, meter.spent_us()
    expect(total, arrived + sent)
    return rate_summary([sent * 1e9 / elapsed_ns], sent, elapsed_ns, cpu_us)


def main():
    arguments = parse_arguments(["W2w", "W2w1k", "W2o", "W2g"])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def window(count):
        def measure():
            stage.ready()
            call, expected = system.window(count), list(range(count))

            def batch():
                expect(call(), expected)
                return count

            return time_batches(batch, arguments.seconds, system.pids())

        return measure

    def flood():
        stage.ready()
        return one_way_flood(system, arguments.seconds)

    def gather():
        stage.ready(kind="async")

        async def measure():
            call, expected = system.gatherer(64), list(range(64))

            async def batch():
                expect(await call(), expected)
                return 64

            return await time_async_batches(batch, arguments.seconds, system.pids())

        return asyncio.run(measure())

    run_rows(arguments, system, {"W2w": window(64), "W2w1k": window(1024), "W2o": flood, "W2g": gather})
    stage.end()


main()
