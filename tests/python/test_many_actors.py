"""Thousands of actors in one process: their threads take turns in asking for the GIL."""

import os
import select
import time

from monarch.actor import Actor, endpoint, this_host

COUNT = 2000
LIMIT = 30


class Adder(Actor):
    @endpoint
    def add(self, x):
        return x + 1


class Waiter(Actor):
    @endpoint
    def wait(self, adder, seconds):
        import time

        time.sleep(seconds)
        return adder.add.call_one(1).get()


def test_thousands_of_actors_of_one_process_answer_whatever_some_of_them_wait_for():
    procs = this_host().spawn_procs()
    adders = [procs.spawn(f"adder{i}", Adder) for i in range(COUNT)]
    waiters = [procs.spawn(f"waiter{i}", Waiter) for i in range(100)]  # more than may ask at once
    for _ in range(3):
        waiting = [waiter.wait.call_one(adders[0], 0.01) for waiter in waiters]
        found = [adder.add.call_one(i) for i, adder in enumerate(adders)]
        assert [future.get(timeout=60) for future in found] == [i + 1 for i in range(COUNT)]
        assert [future.get(timeout=60) for future in waiting] == [2] * len(waiters)
    procs.stop().get()


class Counter(Actor):
    @endpoint
    def threads(self):
        return len(os.listdir("/proc/self/task"))


def test_the_threads_of_actors_that_have_ended_end_too_but_for_a_few():
    procs = this_host().spawn_procs()
    counter = procs.spawn("counter", Counter)
    few = counter.threads.call_one().get(timeout=LIMIT) + 64
    for _ in range(2):  # the second ones get the stacks of the first ones
        actors = [procs.spawn(f"adder{i}", Adder) for i in range(300)]
        assert [actor.add.call_one(1).get(timeout=LIMIT) for actor in actors] == [2] * 300
        assert counter.threads.call_one().get(timeout=LIMIT) > 300
        for stopping in [actor.stop() for actor in actors]:
            stopping.get(timeout=LIMIT)
        end = time.monotonic() + LIMIT
        while (count := counter.threads.call_one().get(timeout=LIMIT)) > few:
            assert time.monotonic() < end, count
            select.select([], [], [], 0.05)
    procs.stop().get(timeout=LIMIT)
