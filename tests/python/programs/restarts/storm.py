"""Actors with a restart policy are killed and fail at random while they are called: SEED SECONDS STRATEGY."""

import os
import random
import signal
import sys
import threading
import time
from typing import Any

from monarch.actor import Actor, ActorError, DeadlineExceeded, Restart, SupervisionError, endpoint, this_host

RANKS = 6
SIGNALS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT]
LIMIT = 20  # seconds, for what takes milliseconds


class Worker(Actor):
    @endpoint
    def add(self, x):
        return x + 1

    @endpoint
    def ask(self, other, x):
        return other.add.call_one(x).get()

    @endpoint
    async def fail(self):
        raise ValueError("failed on purpose")

    @endpoint
    def pid(self):
        return os.getpid()


class Storm(threading.Thread):
    def __init__(self, workers, chance):
        super().__init__()
        self.workers, self.chance, self.over, self.blows = workers, chance, threading.Event(), 0

    def run(self):
        while not self.over.wait(self.chance.random() * 0.03):
            one = self.workers.slice(gpus=self.chance.randrange(RANKS))
            try:
                if self.chance.random() < 0.3:
                    one.fail.broadcast()
                else:
                    os.kill(one.pid.options(deadline=LIMIT).call_one().get(), self.chance.choice(SIGNALS))
                self.blows += 1
            except (SupervisionError, ProcessLookupError):
                pass


def calls(workers, chance, seconds):
    """How many were answered, and how many have failed, with a reason; all that were answered, rightly."""
    answered = failed = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        x = answered + failed
        try:
            if x % 2:
                answers = list(workers.add.options(deadline=LIMIT).call(x).get().values())
                assert answers == [x + 1] * RANKS, answers
            else:
                asked, other = (workers.slice(gpus=rank) for rank in chance.sample(range(RANKS), 2))
                answer = asked.ask.options(deadline=LIMIT).call_one(other, x).get()
                assert answer == x + 1, answer
            answered += 1
        except DeadlineExceeded:
            raise
        except (SupervisionError, ActorError):
            failed += 1
    return answered, failed


def wait_until_all_are_back(workers):
    until = time.monotonic() + LIMIT
    while True:
        try:
            workers.add.options(deadline=LIMIT).call(1).get()
            return
        except SupervisionError:
            assert time.monotonic() < until
            time.sleep(0.01)


def main(seed, seconds, strategy):
    procs = this_host().spawn_procs({"gpus": RANKS})
    policy = Restart(times=1_000_000, strategy=strategy)
    workers: Any = procs.options(restart=policy).spawn("workers", Worker)  # a mesh, also to type checkers
    workers.add.call(1).get()
    storm = Storm(workers, random.Random(seed))
    storm.start()
    try:
        answered, failed = calls(workers, random.Random(seed + 1), seconds)
    finally:
        storm.over.set()
        storm.join()
    wait_until_all_are_back(workers)
    assert workers.epoch > 0 and answered > 0
    print(f"{storm.blows} blows, {answered} answered, {failed} failed, epoch {workers.epoch}")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
