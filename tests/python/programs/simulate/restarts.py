"""Restart policies of every strategy, here and in actors, while processes are killed: restarts.py SEED [SEED ...]."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time

import monarch.actor
from monarch.actor import Actor, ProcMesh, Restart, SupervisionError, endpoint, this_host
from monarch.testing import simulate

STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


class Worker(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    async def nap(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return self.count


class Owner(Actor):
    def __init__(self) -> None:
        self.procs = this_host().spawn_procs({"x": 2}, name="inner")
        self.workers = self.procs.options(restart=Restart(times=10**6)).spawn("workers", Worker)

    @endpoint
    def ask(self) -> list[object]:
        return list(self.workers.add.options(partial=True).call().get().values())

    @endpoint
    def its_procs(self) -> ProcMesh:
        return self.procs


def run(seed: int) -> None:
    """Kills at random, then waits for all to be there again: each death is made good once, everybody answers."""
    with simulate(seed=seed) as world:
        procs = this_host().spawn_procs({"x": 3})
        policy = Restart(times=10**6, strategy=STRATEGIES[seed % 3])
        first = procs.options(restart=policy).spawn("first", Worker)
        second = procs.options(restart=Restart(times=10**6)).spawn("second", Worker)
        own = this_host().spawn_procs({"x": 2}, name="own")
        owners = own.options(restart=Restart(times=10**6)).spawn("owners", Owner)
        for _ in range(12):
            time.sleep(random.random() * random.choice([0.001, 0.01, 0.3]))
            for _ in range(random.choice([1, 1, 2])):
                with contextlib.suppress(ValueError):  # it is dead just now
                    world.kill(procs, random.randrange(3))
            if random.random() < 0.4:
                with contextlib.suppress(ValueError, SupervisionError):
                    world.kill(owners.slice(x=random.randrange(2)).its_procs.call_one().get(), random.randrange(2))
            if random.random() < 0.5:
                first.add.options(partial=True).call().get()
        time.sleep(20)
        for call in (first.add.call(), first.nap.call(0.01), second.add.call()):
            assert len(list(call.get(timeout=30).values())) == 3
        answers = [answer for each in owners.ask.call().get(timeout=30).values() for answer in each]
        assert all(isinstance(answer, int) for answer in answers), answers
        of_procs = [event.what for event in world.log if event.mesh == "procs"]
        assert of_procs.count("spawned") - 3 == of_procs.count("killed"), of_procs


if __name__ == "__main__":
    monarch.actor.unhandled_fault_hook = lambda failure: None
    for argument in sys.argv[1:]:
        run(int(argument))
