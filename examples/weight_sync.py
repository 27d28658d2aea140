"""Weights of a model go from trainers to generators, which have it cut in another way, while some of them die.

Two trainers have rows of each matrix, two generators have columns. After each step the trainers publish a version; the
generators pull it, each its columns, straight from the memory of the trainers. In the middle a trainer is killed
while generators pull, and then a generator: both are replaced, and the next version arrives as if nothing had been.

At the end the same weights go as arguments of a call, and through Ray's object store if that is installed, to compare.

    python examples/weight_sync.py [MEGABYTES]
"""

import importlib.util
import os
import signal
import sys
import time

import numpy as np

from monarch.actor import Actor, ActorError, SupervisionError, current_rank, endpoint, this_host
from monarch.weights import Source, Target, shard

TRAINERS = GENERATORS = 2
STEPS, LAYERS = 6, 8
MEGABYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 64
COLUMNS = 1024
ROWS = max(TRAINERS, MEGABYTES * 1_000_000 // (4 * COLUMNS * LAYERS))


def parts(dim: int, ranks: int) -> dict:
    """Which block of each layer this rank has."""
    shape = (ROWS, COLUMNS)
    return {f"layer{i}": (shape, shard(shape, dim, current_rank().rank, ranks)) for i in range(LAYERS)}


class Trainer(Actor):
    def __init__(self) -> None:
        where = parts(0, TRAINERS)
        self.weights = {name: np.zeros(box.sizes, np.float32) for name, (_, box) in where.items()}
        self.source = Source(self.weights, where)

    @endpoint
    def handle(self):
        return self.source.handle()

    @endpoint
    def step(self, version: int) -> float:
        for array in self.weights.values():
            array[...] = version  # a real one learns here
        return self.source.publish(version).gigabytes_per_second

    @endpoint
    def everything(self) -> dict:
        return self.weights

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Generator(Actor):
    def __init__(self) -> None:
        where = parts(1, GENERATORS)
        self.weights = {name: np.zeros(box.sizes, np.float32) for name, (_, box) in where.items()}
        self.target = Target(self.weights, where)

    @endpoint
    def pull(self, sources: list, version: int) -> float:
        moved = self.target.pull(sources, version)
        for array in self.weights.values():  # never half of one version and half of another
            assert (array == version).all()
        return moved.gigabytes_per_second

    @endpoint
    def take(self, weights: dict) -> int:
        self.received = weights
        return sum(array.nbytes for array in weights.values())

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def kill(actor, pid: int) -> None:
    """Returns when it is known that its process is dead."""
    os.kill(pid, signal.SIGKILL)
    try:
        actor.pid.call_one().get()
    except SupervisionError:
        pass


def handles(trainers) -> list:
    return list(trainers.handle.call().get().values())


def as_arguments(trainers, generators) -> float:
    """GB/s of the weights as results of one call and arguments of the next."""
    begun = time.perf_counter()
    for weights in trainers.everything.call().get().values():
        nbytes = sum(generators.take.call(weights).get().values())
    return TRAINERS * nbytes / (time.perf_counter() - begun) / 1e9


def through_ray() -> float | None:
    """The same, put into Ray's object store by one process and got by another; None: Ray is not there."""
    if importlib.util.find_spec("ray") is None:
        return None
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    weights = [np.zeros((ROWS, COLUMNS), np.float32) for _ in range(LAYERS)]

    @ray.remote
    def copy(*arrays):
        return sum(array.copy().nbytes for array in arrays)

    ray.get(copy.remote(*[ray.put(array) for array in weights]))  # warm
    begun = time.perf_counter()
    nbytes = ray.get(copy.remote(*[ray.put(array) for array in weights]))
    seconds = time.perf_counter() - begun
    ray.shutdown()
    return nbytes / seconds / 1e9


def main() -> None:
    trainer_procs = this_host().spawn_procs(per_host={"gpus": TRAINERS})
    generator_procs = this_host().spawn_procs(per_host={"gpus": GENERATORS})
    trainers = trainer_procs.spawn("trainers", Trainer)
    generators = generator_procs.spawn("generators", Generator)
    sources = handles(trainers)
    victims = {version: mesh.slice(gpus=1) for version, mesh in ((3, trainers), (5, generators))}
    pids = {version: victim.pid.call_one().get() for version, victim in victims.items()}
    print(f"{ROWS * COLUMNS * LAYERS * 4 / 1e6:.0f} MB of weights, rows to columns")

    speeds = []
    for version in range(1, STEPS + 1):
        trainers.step.call(version).get()
        pulled = generators.pull.call(sources, version)
        if version in victims:
            kill(victims[version], pids[version])
        try:
            speeds += pulled.get().values()
        except (ActorError, SupervisionError) as error:
            last = str(error).strip().splitlines()[-1].strip()
            print(f"version {version}: {last}")
        if version == 3:
            trainer_procs.respawn([1]).get()  # with its actor, whose memory is another now
            sources = handles(trainers)
        if version == 5:
            generator_procs.respawn([1]).get()
        print(f"version {version} is published" + (", one of them was replaced" if version in (3, 5) else ""))

    print(f"pulled by each generator: {np.median(speeds):.1f} GB/s (its half, while the other pulls too)")
    as_arguments(trainers, generators)
    print(f"as arguments of calls:    {as_arguments(trainers, generators):.1f} GB/s")
    ray_speed = through_ray()
    print(
        "through Ray's store:      "
        + ("not run, Ray is not installed" if ray_speed is None else f"{ray_speed:.1f} GB/s")
    )


if __name__ == "__main__":
    main()
