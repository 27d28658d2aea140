"""W5: fan-in. Several processes send 64-byte messages one way to one actor for the measured time.

W5_8   messages per second, from the start until the actor has handled the last one
W5f_8  fairness: how long until the last sender's messages were handled, over the same of the first
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import Stage, expect, load_system, parse_arguments, run_rows  # noqa: E402

SENDERS = 8


def main():
    arguments = parse_arguments(["W5_8", "W5f_8"])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)
    measured = []

    def flood():
        """(messages per second, fairness); once for both rows."""
        if not measured:
            stage.ready(SENDERS + 1)
            send, barrier = system.fan_in()
            send(0.1)
            arrived = barrier()
            start = time.monotonic()
            reports = send(arguments.seconds)
            elapsed = time.monotonic() - start
            sent = sum(count for count, _ in reports)
            expect(barrier(), arrived + sent)
            ends = [end - start for _, end in reports]
            measured.extend([sent / elapsed, max(ends) / min(ends), sent])
        return measured

    def rate():
        value, _, count = flood()
        return {"unit": "/s", "value": value, "count": count, "samples": [value]}

    def fairness():
        _, value, count = flood()
        return {"unit": "x", "value": value, "count": count, "samples": [value]}

    run_rows(arguments, system, {"W5_8": rate, "W5f_8": fairness})
    stage.end()


main()
