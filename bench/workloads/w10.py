"""W10: a process dies while a call to it is pending, until its caller holds the error.

k  SIGKILL by another process        s  SIGSEGV by itself        x  os._exit(7)
each with a victim of 30 MB (an interpreter as it is) and of 1 GiB; b: as k while another thread of the caller computes
in pure Python; n: SIGKILL of a process that a worker has started; 32: so many at once, until the last of their callers
knows; f: as k, the first death in a fresh interpreter (w10_first.py).
"""

import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from deaths import Killer  # noqa: E402
from harness import BENCH_DIR, expect, latency_of_few, load_system, parse_arguments, run_rows  # noqa: E402
from mortal import KILLED  # noqa: E402

SIZES = {"30M": 0, "1G": 1 << 30}


def main():
    rows = [f"W10{how}_{size}" for how in "ksx" for size in SIZES] + ["W10f", "W10b_30M", "W10n", "W10_32"]
    arguments = parse_arguments(rows)
    system = load_system(arguments.system)
    killer = Killer()

    def die(victims, how, size):
        """All of them; -> ms until the last of their callers has its error."""
        pids = victims.grow(size)
        waits = [victims.die(rank, how) for rank in range(len(pids))]
        if how == KILLED:
            killer.kill(pids)
        texts = [wait() for wait in waits]
        elapsed_ms = killer.stamp.ms_since()
        for pid, text in zip(pids, texts, strict=True):
            expect([part for part in system.death_texts(pid, how) if part not in text], [])
        victims.end()
        return elapsed_ms

    def few(make, how=KILLED, size=0):
        return lambda: latency_of_few(lambda: die(make(), how, size), arguments.seconds)

    def busy(measure):
        def with_thread():
            going = [True]

            def compute():
                while going:
                    pass

            thread = threading.Thread(target=compute)
            thread.start()
            try:
                return measure()
            finally:
                going.clear()
                thread.join()

        return with_thread

    def first():
        program = os.path.join(BENCH_DIR, "workloads", "w10_first.py")
        command = [sys.executable, program, arguments.system]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
        return json.loads(lines[-1])["ms"]

    def alone():
        return system.victims(1, killer.path)

    measures = {f"W10{how}_{size}": few(alone, how, count) for how in "ksx" for size, count in SIZES.items()}
    measures["W10f"] = lambda: latency_of_few(first, arguments.seconds)
    measures["W10b_30M"] = busy(few(alone))
    measures["W10n"] = few(lambda: system.nested_victim(killer.path))
    measures["W10_32"] = few(lambda: system.victims(32, killer.path))
    run_rows(arguments, system, measures)
    killer.end()


main()
