"""W3: one call to many actors that live in two processes, and all answers."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import Stage, load_system, parse_arguments, run_rows, time_calls  # noqa: E402

PROCS = 2
ROWS = {"W3_64": 64, "W3_1k": 1024}


def main():
    arguments = parse_arguments(list(ROWS))
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def swarm_call(count):
        def measure():
            stage.ready(PROCS)
            call_all = system.swarm_caller(count // PROCS)
            expected = [7 + rank for rank in range(count)]
            return time_calls(lambda: call_all(7), expected, arguments.seconds, system.pids(), unit="ms")

        return measure

    run_rows(arguments, system, {row: swarm_call(count) for row, count in ROWS.items()})
    stage.end()


main()
