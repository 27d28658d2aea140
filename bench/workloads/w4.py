"""W4: one call to a mesh of processes with one actor each, and all answers. Several widths, one mesh at a time."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import Stage, load_system, parse_arguments, run_rows, time_calls  # noqa: E402

WIDTHS = (2, 8, 32, 64, 256)


def main():
    arguments = parse_arguments([f"W4_{procs}" for procs in WIDTHS])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def mesh_call(procs):
        def measure():
            stage.ready(procs)
            call_all = system.all_caller()
            expected = [7 + rank for rank in range(procs)]
            return time_calls(lambda: call_all(7), expected, arguments.seconds, system.pids(), unit="ms")

        return measure

    run_rows(arguments, system, {f"W4_{procs}": mesh_call(procs) for procs in WIDTHS})
    stage.end()


main()
