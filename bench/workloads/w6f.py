"""W6f: a frozen array of 1 GiB as the argument of a call, beside one of 1 KiB; W6f8: of a call of 8 processes.

Endpoints look at the first and the last byte. The array is made, frozen and sent once before; so its pages are there.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import Stage, load_system, parse_arguments, run_rows, time_calls  # noqa: E402

SIZES = {"1K": 1 << 10, "1G": 1 << 30}
PROCS = {"W6f": 1, "W6f8": 8}


def main():
    rows = [f"{kind}_{size}" for kind in PROCS for size in SIZES]
    arguments = parse_arguments(rows)
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def measure(row):
        def run():
            kind, size = row.split("_")
            stage.ready(PROCS[kind])
            call = system.frozen_caller(SIZES[size], first=7, last=9)
            expected = [7 + 256 * 9] * PROCS[kind]
            return time_calls(call, expected, arguments.seconds, system.pids(), unit="us")

        return run

    run_rows(arguments, system, {row: measure(row) for row in rows})
    stage.end()


main()
