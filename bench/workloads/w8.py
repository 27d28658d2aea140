"""W8: spawn processes with one actor each, until all first answers are there. The second spawn of the script counts.

The first spawn (of the same shape) is ended before the second starts. Nothing is pinned: a spawn has no two sides.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import expect, load_system, parse_arguments, run_rows  # noqa: E402


def main():
    arguments = parse_arguments(["W8_1", "W8_8"])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()

    def spawn(procs):
        def measure():
            expected = [rank + 1 for rank in range(procs)]
            answers, end = system.spawn_round(procs)
            expect(answers, expected)
            end()
            start = time.perf_counter()
            answers, end = system.spawn_round(procs)
            elapsed_ms = (time.perf_counter() - start) * 1e3
            expect(answers, expected)
            end()
            return {"unit": "ms", "value": elapsed_ms, "count": 1, "samples": [elapsed_ms]}

        return measure

    run_rows(arguments, system, {f"W8_{procs}": spawn(procs) for procs in (1, 8)})


main()
