"""W7: 100 actors spawned one by one into two running processes, until all have answered; actors per second."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import Stage, expect, load_system, parse_arguments, run_rows  # noqa: E402

COUNT = 100
PROCS = 2


def main():
    arguments = parse_arguments(["W7"])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def measure():
        stage.ready(PROCS)
        expect(system.spawn_actors(2), [1, 2])  # the first spawn of a class is not what the row asks for
        start = time.perf_counter()
        answers = system.spawn_actors(COUNT)
        elapsed = time.perf_counter() - start
        expect(answers, [index + 1 for index in range(COUNT)])
        stage.end()
        rate = COUNT / elapsed
        return {"unit": "/s", "value": rate, "count": COUNT, "samples": [rate]}

    run_rows(arguments, system, {"W7": measure})


main()
