"""One call to each of many actors of one process, all at once: seconds for a round, which should grow as their number.

bench/many_actors.py [count...]
"""

import sys
import time

from monarch.actor import Actor, endpoint, this_host


class Adder(Actor):
    @endpoint
    def add(self, x):
        return x + 1


def main(count: int) -> None:
    procs = this_host().spawn_procs()
    started = time.perf_counter()
    adders = [procs.spawn(f"adder{i}", Adder) for i in range(count)]
    rounds = []
    for _ in range(6):
        for future in [adder.add.call_one(0) for adder in adders]:
            future.get()
        rounds.append(time.perf_counter() - started)
        started = time.perf_counter()
    first, *others = rounds
    print(f"{count:6} actors: with the first round {first:.2f} s, later ones {min(others):.3f} to {max(others):.3f} s")
    procs.stop().get()


for argument in sys.argv[1:] or ("1000", "4000", "8000"):
    main(int(argument))
