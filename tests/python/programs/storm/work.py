"""Kinds of work that a mesh of workers is given, each begun at once and settled later."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from faults import Fault
from verdict import LIMIT, Wrong, settle

from monarch.actor import Channel

Faults = Callable[[Iterable[int]], list[Fault]]  # that these ranks have met so far
Settle = Callable[[Faults], object]
RECORDS = 20  # that each rank sends to a port


def same_for_all(ranks: Iterable[int], value: Any) -> Callable[[Any], bool]:
    expected = sorted((rank, value) for rank in ranks)
    return lambda answers: sorted(answers.values()) == expected


def call(rng: random.Random, workers: Any, ranks: range) -> Settle:
    x = rng.randrange(1000)
    future = workers.square.call(x)
    return lambda faults: settle("call", future.get, same_for_all(ranks, x * x), faults(ranks))


def call_one(rng: random.Random, workers: Any, ranks: range) -> Settle:
    rank, x = rng.choice(ranks), rng.randrange(1000)
    future = workers.slice(gpus=rank).square.call_one(x)
    return lambda faults: settle("call_one", future.get, lambda a: a == (rank, x * x), faults([rank]))


def choose(rng: random.Random, workers: Any, ranks: range) -> Settle:
    x = rng.randrange(1000)
    future = workers.square.choose(x)
    right = [(rank, x * x) for rank in ranks]
    return lambda faults: settle("choose", future.get, lambda a: a in right, faults(ranks))


def stream(rng: random.Random, workers: Any, ranks: range) -> Settle:
    x = rng.randrange(1000)
    futures = list(workers.square.stream(x))
    right = {(rank, x * x) for rank in ranks}

    def take(answer: Any) -> bool:
        there = answer in right
        right.discard(answer)
        return there

    def end(faults: Faults) -> None:
        answered = [settle("stream", future.get, take, faults(ranks)) for future in futures]
        if len(answered) != len(ranks):
            raise Wrong(f"stream: {len(answered)} answers of {len(ranks)}")

    return end


def send_large(rng: random.Random, workers: Any, ranks: range) -> Settle:
    block = bytes([rng.randrange(256)]) * rng.choice([100, 100_000, 1 << 20])
    future = workers.checksum.call(block)
    return lambda faults: settle("large", future.get, same_for_all(ranks, zlib.crc32(block)), faults(ranks))


def fetch_large(rng: random.Random, workers: Any, ranks: range) -> Settle:
    size, fill = rng.choice([100, 100_000, 1 << 20]), rng.randrange(256)
    future = workers.block.call(size, fill)
    right = same_for_all(ranks, bytes([fill]) * size)
    return lambda faults: settle("large answer", future.get, right, faults(ranks))


def post(rng: random.Random, workers: Any, ranks: range) -> Settle:
    """Each rank sends some numbers through a port: what comes of it is in order, and whole if the rank lives."""
    port, received = Channel.open()
    workers.post.broadcast(port, RECORDS)

    def end(faults: Faults) -> None:
        seen = {rank: 0 for rank in ranks}
        while any(count < RECORDS and not faults([rank]) for rank, count in seen.items()):
            try:
                rank, number = received.recv().get(LIMIT)
            except TimeoutError as error:
                raise Wrong(f"port: only {seen} after {LIMIT} s") from error
            if number != seen[rank]:
                raise Wrong(f"port: {number} of rank {rank}, which has sent {seen[rank]}")
            seen[rank] += 1

    return end


def ask(rng: random.Random, workers: Any, ranks: range) -> Settle:
    """A call between two ranks; always upwards, or two might wait for each other."""
    if len(ranks) == 1:
        return call_one(rng, workers, ranks)
    (rank, other), x = sorted(rng.sample(ranks, 2)), rng.randrange(1000)
    future = workers.slice(gpus=rank).ask.call_one(workers.slice(gpus=other), x)
    right = (rank, (other, x * x))
    return lambda faults: settle("ask", future.get, lambda a: a == right, faults([rank, other]))


def fork(rng: random.Random, workers: Any, ranks: range) -> Settle:
    code = rng.randrange(100)
    future = workers.fork.call(code)
    return lambda faults: settle("fork", future.get, same_for_all(ranks, code), faults(ranks))


def run_program(rng: random.Random, workers: Any, ranks: range) -> Settle:
    text = str(rng.randrange(1000))
    future = workers.run_program.call(text)
    return lambda faults: settle("program", future.get, same_for_all(ranks, text), faults(ranks))


def fail(rng: random.Random, workers: Any, ranks: range) -> Settle:
    """A call that raises, which harms nobody."""
    word = f"word-{rng.randrange(10**9)}"
    future = workers.harm.call("exception", word)
    own = Fault("an exception", "nothing", word)
    return lambda faults: settle("raising", future.get, lambda answer: False, [own, *faults(ranks)])


KINDS = [call, call_one, choose, stream, send_large, fetch_large, post, ask, ask, fork, run_program, fail]
