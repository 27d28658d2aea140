"""The whole API at once, by chance, from several threads of a script. Nothing fails here: each result is checked.

    mixture.py --seconds 60 --seed 7 --hosts

What does not go on for STUCK seconds ends the program, with the stacks of the script and of its actors.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import threading
import time
import traceback

import numpy

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    concurrent_endpoint,
    context,
    dump_stacks,
    endpoint,
    this_host,
)
from monarch.job import ProcessJob

THREADS = 4
RANKS = 3
LIMIT = 60
STUCK = 30
LENGTHS = [0, 1, 100, 10_000, 300_000, 2_000_000]  # of arrays of 4 bytes each


class Blocking(Actor):
    def __init__(self):
        self.added = 0
        self.port, self.receiver = Channel.open()

    @endpoint
    def rank(self):
        return context().message_rank.rank

    @endpoint
    def echo(self, x):
        return x

    @endpoint
    def add(self, x):
        self.added += x

    @endpoint
    def taken_together(self):
        added, self.added = self.added, 0
        return added

    @endpoint
    def fail(self, text):
        raise ValueError(text)

    @endpoint
    def relay(self, other, x):
        return other.echo.call_one(x).get(timeout=LIMIT)

    @endpoint
    def give(self):
        return self.port

    @endpoint
    def take(self, count):
        return take(self.receiver, count)

    @endpoint
    def count(self, port, number):
        for i in range(number):
            port.send(i)

    @endpoint
    def play(self, other, rounds):
        port, receiver = Channel.open()
        other.return_balls.broadcast(port, rounds)
        there = receiver.recv().get(timeout=LIMIT)
        for i in range(rounds):
            there.send(i)
            assert receiver.recv().get(timeout=LIMIT) == i

    @endpoint
    def return_balls(self, port, rounds):
        here, receiver = Channel.open()
        port.send(here)
        for _ in range(rounds):
            port.send(receiver.recv().get(timeout=LIMIT))

    @endpoint
    def total(self, array):
        return float(array.sum())

    @endpoint
    def total_of_result(self, result):
        return float(result.get(timeout=LIMIT).sum())

    @endpoint
    def zeros(self, length):
        return numpy.zeros(length, dtype=numpy.float32)

    @endpoint
    def spawn_and_ask(self, x):
        procs = this_host().spawn_procs({"gpus": 2})
        values = procs.spawn("nested", Blocking).echo.call(x).get(timeout=LIMIT).values()
        procs.stop().get(timeout=LIMIT)
        return values


class Async(Actor):
    @endpoint
    async def echo(self, x):
        await asyncio.sleep(0)
        return x

    @concurrent_endpoint
    async def slow_echo(self, x):
        await asyncio.sleep(random.random() / 100)
        return x

    @endpoint
    async def relay(self, other, x):
        return await other.echo.call_one(x)

    @concurrent_endpoint
    async def hang(self):
        await asyncio.Event().wait()

    @endpoint
    async def count(self, port, number):
        for i in range(number):
            port.send(i)


def take(receiver, count):
    return [receiver.recv().get(timeout=LIMIT) for _ in range(count)]


def expect(found, wanted):
    assert found == wanted, f"{found!r} in place of {wanted!r}"


class User:
    """A thread's, with two meshes of its own."""

    def __init__(self, procs, number, seed):
        self.procs, self.seed = procs, seed
        self.rng = random.Random(f"{seed} {number}")
        self.blocking = procs.spawn("blocking", Blocking)
        self.loop = procs.spawn("async", Async)
        self.done = 0
        self.went_on = time.monotonic()
        self.doing = ""

    def one(self, mesh, but=None):
        """A rank of it by chance, and its number."""
        rank = self.rng.choice([rank for rank in range(RANKS) if rank != but])
        return mesh.slice(**{mesh.extent.labels[0]: rank}), rank

    def step(self):
        action = self.rng.choices(ACTIONS, [often for _, often in ACTIONS])[0][0]
        self.doing = action.__name__
        action(self)
        self.done += 1
        self.went_on = time.monotonic()

    # ---- What it does ----

    def call(self):
        expect(self.blocking.rank.call().get(timeout=LIMIT).values(), [0, 1, 2])

    def stream(self):
        expect(sorted(future.get(timeout=LIMIT) for future in self.blocking.rank.stream()), [0, 1, 2])

    def choose(self):
        expect(self.blocking.echo.choose("x").get(timeout=LIMIT), "x")

    def reduce(self):
        expect(self.blocking.echo.options(reduce="sum").call(2).get(timeout=LIMIT), 2 * RANKS)

    def broadcast(self):
        actor, _ = self.one(self.blocking)
        count = self.rng.randrange(50)
        for _ in range(count):
            actor.add.broadcast(1)
        expect(actor.taken_together.call_one().get(timeout=LIMIT), count)

    def drop_futures(self):
        for i in range(50):
            self.blocking.echo.call(i)
        expect(self.blocking.echo.call(1).get(timeout=LIMIT).values(), [1] * RANKS)

    def many_at_once(self):
        futures = [self.loop.slow_echo.call(i) for i in range(20)]
        expect([future.get(timeout=LIMIT).values() for future in futures], [[i] * RANKS for i in range(20)])

    def await_many(self):
        async def main():
            actor, other = self.one(self.blocking)[0], self.one(self.loop)[0]
            calls = [ep.call_one(i) for ep in (actor.echo, other.slow_echo) for i in range(10)]
            return await asyncio.gather(*calls)

        expect(asyncio.run(main()), [*range(10)] * 2)

    def relay(self):
        mesh = self.rng.choice([self.blocking, self.loop])
        first, rank = self.one(mesh)
        expect(first.relay.call_one(self.one(mesh, but=rank)[0], 1).get(timeout=LIMIT), 1)

    def receive(self):
        port, receiver = Channel.open()
        count = self.rng.randrange(1, 300)
        done = self.one(self.blocking)[0].count.call_one(port, count)
        expect(take(receiver, count), list(range(count)))
        done.get(timeout=LIMIT)

    def receive_from_all(self):
        port, receiver = Channel.open()
        done = self.loop.count.call(port, 10)
        expect(sorted(take(receiver, 10 * RANKS)), sorted([*range(10)] * RANKS))
        done.get(timeout=LIMIT)

    def send(self):
        owner, rank = self.one(self.blocking)
        port = owner.give.call_one().get(timeout=LIMIT)
        count = self.rng.randrange(1, 100)
        if self.rng.random() < 0.5:
            self.one(self.blocking, but=rank)[0].count.call_one(port, count).get(timeout=LIMIT)
        else:
            for i in range(count):
                port.send(i)
        expect(owner.take.call_one(count).get(timeout=LIMIT), list(range(count)))

    def play(self):
        first, rank = self.one(self.blocking)
        first.play.call_one(self.one(self.blocking, but=rank)[0], 20).get(timeout=LIMIT)

    def send_array(self):
        length = self.rng.choice(LENGTHS)
        array = numpy.ones(length, dtype=numpy.float32)
        futures = [self.blocking.total.call(array) for _ in range(2)]
        for future in futures:
            expect(future.get(timeout=LIMIT).values(), [float(length)] * RANKS)

    def get_array(self):
        length = self.rng.choice(LENGTHS)
        array = self.one(self.blocking)[0].zeros.call_one(length).get(timeout=LIMIT)
        expect((array.shape, float(array.sum())), ((length,), 0.0))

    def pass_result_on(self):
        result = self.one(self.blocking)[0].zeros.options(results="remote").call_one(1000).get(timeout=LIMIT)
        expect(self.blocking.total_of_result.call(result).get(timeout=LIMIT).values(), [0.0] * RANKS)

    def fail(self):
        try:
            self.one(self.blocking)[0].fail.call_one("on purpose").get(timeout=LIMIT)
        except ActorError as error:
            expect((type(error.exception), str(error.exception)), (ValueError, "on purpose"))
        else:
            raise AssertionError("no error came")

    def exceed_deadline(self):
        actor, _ = self.one(self.loop)
        expect(type(actor.hang.options(deadline=0.01).call_one().exception(timeout=LIMIT)), DeadlineExceeded)
        expect(actor.slow_echo.call_one(1).get(timeout=LIMIT), 1)

    def spawn_actors(self):
        actors = self.procs.spawn("more", Blocking)
        expect(actors.rank.call().get(timeout=LIMIT).values(), [0, 1, 2])
        if self.rng.random() < 0.5:
            actors.stop().get(timeout=LIMIT)

    def replace_actors(self):
        self.blocking.stop().get(timeout=LIMIT)
        self.blocking = self.procs.spawn("blocking", Blocking)

    def spawn_processes(self):
        procs = this_host().spawn_procs({"gpus": RANKS})
        actors = procs.spawn("others", Blocking)
        expect(actors.echo.call(1).get(timeout=LIMIT).values(), [1] * RANKS)
        expect(self.one(self.blocking)[0].relay.call_one(actors.slice(gpus=1), 2).get(timeout=LIMIT), 2)
        procs.stop().get(timeout=LIMIT)

    def spawn_nested(self):
        expect(self.one(self.blocking)[0].spawn_and_ask.call_one(1).get(timeout=LIMIT), [1, 1])


RARE = {User.replace_actors: 0.1, User.spawn_processes: 0.05, User.spawn_nested: 0.05}
ACTIONS = [
    (action, RARE.get(action, 1))
    for name, action in vars(User).items()
    if not name.startswith("_") and name not in ("one", "step")
]


def end_if_stuck(users, end, over):
    while not over.wait(1):
        stuck = [user for user in users if time.monotonic() - user.went_on > STUCK]
        if stuck:
            print(f"stuck: {[user.doing for user in stuck]}; seed {stuck[0].seed}", flush=True)
            faulthandler.dump_traceback()
            print(dump_stacks(stuck[0].procs, timeout=10), flush=True)
            end()
            os._exit(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--hosts", action="store_true", help="each rank on a host of its own")
    asked = parser.parse_args()
    job = ProcessJob({"hosts": RANKS}) if asked.hosts else None
    hosts = job.state(cached_path=None).hosts if job else this_host()
    procs = hosts.spawn_procs({"gpus": 1} if job else {"gpus": RANKS})
    users = [User(procs, number, asked.seed) for number in range(THREADS)]
    end = job.kill if job else lambda: None
    over = threading.Event()
    threading.Thread(target=end_if_stuck, args=(users, end, over), daemon=True).start()
    failures: list[str] = []
    until = time.monotonic() + asked.seconds

    def use(user):
        try:
            while time.monotonic() < until and not failures:
                user.step()
        except BaseException:
            failures.append(f"{user.doing}: {traceback.format_exc()}")
        user.went_on = float("inf")

    threads = [threading.Thread(target=use, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    end()
    if failures:
        raise SystemExit("\n".join([*failures, f"seed {asked.seed}"]))
    print(f"steps: {sum(user.done for user in users)}")


if __name__ == "__main__":
    main()
