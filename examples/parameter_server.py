"""A parameter server: shards that keep the parameters of a model, workers that keep the data. Needs NumPy.

In each step every worker pulls the parameters from all shards, computes the gradient on its own data, and pushes to
each shard its piece of it. Shards and workers talk to each other: the script starts them and looks at the loss, and no
parameter goes through it. The answers are added up in the order of the ranks, so each run prints the same numbers.

    python examples/parameter_server.py
"""

import asyncio
import os

# One thread per process for linear algebra, before NumPy is imported; see examples/digits.py.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from monarch.actor import Accumulator, Actor, concurrent_endpoint, current_rank, current_size, endpoint, this_host

SHARDS, WORKERS, STEPS, RATE = 2, 3, 60, 0.3
FEATURES, ROWS = 32, 400  # of the model; of the data of each worker
TRUTH = np.random.default_rng(0).normal(size=FEATURES)  # what is to be found


class Shard(Actor):
    """Keeps a piece of the parameters, and takes a step when the gradients of all workers have come."""

    def __init__(self, workers: int):
        self.parameters = np.array_split(np.zeros(FEATURES), current_size()["shards"])[current_rank()["shards"]]
        self.gradients: list[np.ndarray | None] = [None] * workers
        self.steps = 0
        self.stepped = asyncio.Condition()

    @concurrent_endpoint
    async def pull(self, after: int) -> np.ndarray:
        """The parameters, as soon as so many steps have been taken. Waits, while gradients come in: so, concurrent."""
        async with self.stepped:
            await self.stepped.wait_for(lambda: self.steps >= after)
            return self.parameters

    @concurrent_endpoint
    async def push(self, worker: int, gradient: np.ndarray) -> None:
        async with self.stepped:
            self.gradients[worker] = gradient
            if all(piece is not None for piece in self.gradients):
                self.parameters = self.parameters - RATE * sum(self.gradients) / len(self.gradients)
                self.gradients = [None] * len(self.gradients)
                self.steps += 1
                self.stepped.notify_all()


class Worker(Actor):
    """Linear regression: finds the parameters with which features @ parameters comes closest to the targets."""

    def __init__(self, shards: Shard):
        self.shards = shards  # the handle of the mesh; nothing of the shards is here
        self.rank = current_rank().rank
        random = np.random.default_rng(1 + self.rank)
        self.features = random.normal(size=(ROWS, FEATURES))
        self.targets = self.features @ TRUTH + random.normal(scale=0.1, size=ROWS)

    async def parameters(self, step: int) -> np.ndarray:
        pieces = await self.shards.pull.call(step)  # of all shards at once, in the order of their ranks
        return np.concatenate(pieces.values())

    @endpoint
    async def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            error = self.features @ await self.parameters(step) - self.targets
            gradient = self.features.T @ error / ROWS
            for shard, piece in enumerate(np.array_split(gradient, len(self.shards))):
                # A different message for each member: so not one to the mesh, but one to each of its slices. Nobody
                # answers; the next pull finds out when the step has been taken.
                self.shards.slice(shards=shard).push.broadcast(self.rank, piece)

    @endpoint
    async def loss(self, step: int) -> float:
        return float(np.mean((self.features @ await self.parameters(step) - self.targets) ** 2))


def main() -> None:
    shards = this_host().spawn_procs(per_host={"shards": SHARDS}).spawn("shards", Shard, WORKERS)
    workers = this_host().spawn_procs(per_host={"workers": WORKERS}).spawn("workers", Worker, shards)
    # Folds the answers into one value as they come: here, how large the largest loss of a worker is.
    largest_loss = Accumulator(workers.loss, 0.0, max)

    for step in range(0, STEPS, 10):
        print(f"after {step:2} steps: loss {largest_loss.accumulate(step).get():8.4f}")
        workers.train.call(step, step + 10).get()
    print(f"after {STEPS} steps: loss {largest_loss.accumulate(STEPS).get():8.4f}")

    found = np.concatenate(shards.pull.call(STEPS).get().values())
    print(f"largest error of a parameter: {np.abs(found - TRUTH).max():.3f}")


if __name__ == "__main__":
    main()
