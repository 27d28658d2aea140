"""W4: one call to a mesh of processes with one actor each, and all answers. Several widths, one mesh at a time."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import load_system, parse_arguments, run_rows, time_calls  # noqa: E402


def main():
    arguments = parse_arguments(["W4_2", "W4_8", "W4_32"])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()

    def mesh_call(procs):
        def measure():
            system.start(procs)
            system.place(arguments.placement)
            call_all = system.all_caller()
            expected = [7 + rank for rank in range(procs)]
            result = time_calls(lambda: call_all(7), expected, arguments.seconds, system.pids(), unit="ms")
            system.unplace()
            system.stop()
            return result

        return measure

    run_rows(arguments, system, {f"W4_{procs}": mesh_call(procs) for procs in (2, 8, 32)})


main()
