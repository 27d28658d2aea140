"""W19: recovery in place. One rank of N is killed while a call to it is pending, until a call to it is answered.

p  by a restart policy; whoever calls tries again until there is an answer
c  by hand: who has caught the error asks for the rank, then calls it
i  CPU per second of an idle tree of 32 processes with an owner that supervises them and a restart policy, of which one
   has been replaced
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from deaths import Killer  # noqa: E402
from harness import expect, idle_burn, latency_of_few, load_system, median, parse_arguments, run_rows  # noqa: E402
from mortal import KILLED  # noqa: E402

SIZES = (8, 32)
PAUSE_S = 0.001  # between two tries
LIMIT_S = 30


def main():
    arguments = parse_arguments([f"W19{how}_{count}" for how in "pc" for count in SIZES] + ["W19i"])
    system = load_system(arguments.system)
    killer = Killer()

    def replaced(victims, rank):
        """The rank dies and is back; -> (ms until its caller is told, ms until it answers)"""
        pid = victims.ask(rank)
        wait = victims.die(rank, KILLED)
        killer.kill([pid])
        wait()
        told_ms = killer.stamp.ms_since()
        victims.recover(rank)
        while (new := victims.ask(rank)) is None:
            if killer.stamp.ms_since() > LIMIT_S * 1e3:
                raise TimeoutError(f"it is not back after {LIMIT_S} s")
            time.sleep(PAUSE_S)
        elapsed_ms = killer.stamp.ms_since()
        expect(new != pid, True)
        return told_ms, elapsed_ms

    def recovery(count, by_policy):
        def measure():
            victims = system.restartable(count, killer.path, by_policy)
            pids, told, rank = victims.grow(0), [], 0

            def once():
                nonlocal rank
                rank = (rank + 1) % count
                told_ms, elapsed_ms = replaced(victims, rank)
                told.append(told_ms)
                now = victims.grow(0)
                expect([one for one in range(count) if now[one] != pids[one]], [rank])
                pids[rank] = now[rank]
                return elapsed_ms

            found = latency_of_few(once, arguments.seconds)
            victims.end()
            return {**found, "told_ms": median(told)}

        return measure

    def idle():
        victims = system.owned(32, killer.path)
        victims.grow(0)
        replaced(victims, 1)
        pids = victims.grow(0)
        found = idle_burn(pids)
        victims.end()
        return found

    measures = {
        f"W19{how}_{count}": recovery(count, by_policy)
        for how, by_policy in {"p": True, "c": False}.items()
        for count in SIZES
    }
    run_rows(arguments, system, {**measures, "W19i": idle})
    killer.end()


main()
