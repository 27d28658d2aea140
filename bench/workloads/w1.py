"""W1: round trip of one endpoint call to one actor in another process.

s  sync caller, `def` endpoint           a  `await` of an `async def` endpoint
x  endpoint that raises                  c  as s, with 10 ms of silence before each call
i  CPU that controller and worker burn over the second after the first idle second
"""

import asyncio
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import Stage, idle_burn, load_system, parse_arguments, run_rows, time_awaits, time_calls  # noqa: E402
from systems.base import ERROR_TEXT  # noqa: E402


def main():
    arguments = parse_arguments(["W1s", "W1x", "W1c", "W1i", "W1a"])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def sync(make, expected, **options):
        def measure():
            stage.ready()
            return time_calls(make(), expected, arguments.seconds, system.pids(), **options)

        return measure

    def awaited():
        stage.ready(kind="async")

        async def measure():
            return await time_awaits(system.async_caller(), 3, arguments.seconds, system.pids())

        return asyncio.run(measure())

    def idle():
        stage.ready()
        time_calls(system.caller(), 3, 0.1)
        return idle_burn(system.pids())

    run_rows(
        arguments,
        system,
        {
            "W1s": sync(system.caller, 3),
            "W1x": sync(system.raiser, ERROR_TEXT),
            "W1c": sync(system.caller, 3, pause=0.01),
            "W1i": idle,
            "W1a": awaited,
        },
    )
    stage.end()


main()
