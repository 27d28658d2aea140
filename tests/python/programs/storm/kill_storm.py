"""Real processes, which do all kinds of work and come to all kinds of harm.

    kill_storm.py --seconds 60 --seed 7

Every call must end with an answer, the right one, or with an error that names a cause there was; nothing may hang, be
told twice, or be left in the script. The seed chooses what happens, the machine when: one that failed often does again.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import threading
import time
import traceback

import census
from rounds import KINDS
from told import told
from verdict import tally

import monarch.actor

THREADS = 3  # that have rounds of their own
WARM_UP = 0.25  # of the time, before things are counted


class Storm:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rounds = 0
        self.broken: list[str] = []
        self._lock = threading.Lock()

    def blow(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._have_rounds, args=(number, until)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.broken:
            raise SystemExit("\n".join([*self.broken, f"seed {self.seed}; so far {tally}"]))

    def _have_rounds(self, thread: int, until: float) -> None:
        while time.monotonic() < until and not self.broken:
            name = f"r{self._next_number()}"
            rng = random.Random(f"{self.seed} {name}")
            try:
                rng.choices([kind for _, kind in KINDS], [often for often, _ in KINDS])[0](name, rng).run()
            except BaseException:
                self.broken.append(f"round {name}: {traceback.format_exc()}")

    def _next_number(self) -> int:
        with self._lock:
            self.rounds += 1
            return self.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    faulthandler.dump_traceback_later(options.seconds + 180, exit=True)
    monarch.actor.unhandled_fault_hook = told
    storm = Storm(options.seed)
    storm.blow(options.seconds * WARM_UP)
    before, rounds = census.take(), storm.rounds
    storm.blow(options.seconds * (1 - WARM_UP))
    after = census.check(before, storm.rounds - rounds)
    print(f"{tally}\nleft: {after} (before: {before})")


if __name__ == "__main__":
    main()
