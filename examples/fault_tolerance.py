"""Training goes on while a failure comes every second: replica groups that recover in place. Needs NumPy.

Three groups of two processes train one model. Each takes steps on data of its own; after each round of them the
parameters are averaged over the groups that are well. A group with a failure is repaired, takes the state of the
optimizer from a healthy group, and joins again; the others train on meanwhile. What repairs it depends on the failure:

    exception       the actor is made anew, in its process
    segfault, kill  a process is started in the place of the one that has died, with its actor
    GIL held        nothing tells of it but a round that takes too long: that process is killed, and replaced

Then the same failures hit a job that does nothing of this: with each, all of it starts again from its last checkpoint.
The table at the end puts the two side by side.

    python examples/fault_tolerance.py [--seconds N] [--every N] [--seed N]
"""

import argparse
import asyncio
import collections
import contextlib
import ctypes
import itertools
import os
import random
import signal
import time

# One thread per process for linear algebra, before NumPy is imported; see examples/digits.py.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from monarch.actor import Actor, DeadlineExceeded, SupervisionError, current_rank, endpoint, this_host

GROUPS, MEMBERS = 3, 2  # replica groups, and processes in each
FEATURES, ROWS = 32, 400  # of the model; of the data of each process
STEPS, STEP_S = 10, 0.004  # in a round; what a step takes, which is slept: so six processes fit on any machine
RATE, MOMENTUM = 0.01, 0.9
ROUND_S_MAX = 0.5  # a round that takes longer hangs
CHECKPOINT_S = 0.25  # between two checkpoints of the job without recovery


def data(group: int, member: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and targets that are a linear function of them, with noise."""
    generator = np.random.default_rng((group, member))
    features = generator.normal(size=(ROWS, FEATURES))
    return features, features @ np.arange(FEATURES) / FEATURES + generator.normal(scale=0.1, size=ROWS)


class Trainer(Actor):
    """One process of a group. What it knows besides its data is the velocity of its optimizer."""

    def __init__(self, group: int):
        self.features, self.targets = data(group, current_rank()["members"])
        self.velocity = np.zeros(FEATURES)

    @endpoint
    def train(self, parameters: np.ndarray) -> np.ndarray:
        for _ in range(STEPS):
            time.sleep(STEP_S)
            gradient = self.features.T @ (self.features @ parameters - self.targets) / ROWS
            self.velocity = MOMENTUM * self.velocity - RATE * gradient
            parameters = parameters + self.velocity
        return parameters

    @endpoint
    def state(self) -> np.ndarray:
        return self.velocity

    @endpoint
    def load(self, state: np.ndarray) -> None:
        self.velocity = state

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self, how: str) -> None:
        FAILURES[how]()


def raise_exception() -> None:
    raise RuntimeError("failed on purpose")


FAILURES = {
    "exception": raise_exception,
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "GIL held": lambda: collections.deque(itertools.repeat(None), maxlen=0),  # C code that never ends
}


class Group:
    """One replica group, as the script sees it."""

    def __init__(self, number: int):
        self.number = number
        self.procs = this_host().spawn_procs(per_host={"members": MEMBERS}, name=f"group {number}")
        self.trainers = self.procs.spawn(f"trainers {number}", Trainer, number)
        self.well = False
        self.suffers = "too slow"  # of which failure, as far as it has been given one

    async def start(self) -> None:
        self.pids = list((await self.trainers.pid.call()).values())
        self.well = True

    async def train(self, parameters: np.ndarray) -> tuple[np.ndarray | None, dict[int, Exception]]:
        """A round. Gives the parameters after it, or who has failed."""
        train = self.trainers.train.options(deadline=ROUND_S_MAX, partial=True)  # exceptions stand among the answers
        answers = list((await train.call(parameters)).values())
        failures = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, Exception)}
        return (None if failures else np.mean(answers, axis=0)), failures

    async def recover(self, failures: dict[int, Exception], groups: list["Group"]) -> None:
        self.well = False
        for rank, failure in failures.items():
            member = self.trainers.slice(members=rank)
            if isinstance(failure, DeadlineExceeded):  # it hangs
                with contextlib.suppress(ProcessLookupError, SupervisionError):
                    os.kill(self.pids[rank], signal.SIGKILL)
                    await member.pid.call_one()  # raises as soon as it has ended
                await self.procs.respawn([rank])
            elif failure.exit_code is not None or failure.signal is not None:  # its process has died
                await self.procs.respawn([rank])
            else:  # the actor has failed, and its process is well
                await self.trainers.respawn([rank])
            self.pids[rank] = await member.pid.call_one()
            await self.take_state(rank, [group for group in groups if group.well])
        self.well = True

    async def take_state(self, rank: int, healthy: list["Group"]) -> None:
        for group in healthy:
            with contextlib.suppress(SupervisionError, DeadlineExceeded):  # it may fail now: then from the next one
                state = await group.trainers.slice(members=rank).state.options(deadline=ROUND_S_MAX).call_one()
                return await self.trainers.slice(members=rank).load.call_one(state)

    async def kill(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(SupervisionError):
            await self.trainers.pid.call()  # whoever catches what a call raises has been told of it
        await self.procs.stop()


class Job:
    """One training through failures, and what it has come to. Each group that fails recovers by itself."""

    name = "replica groups recover"
    share = 1 / GROUPS  # of the processes, who lose time by a failure

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.parameters = np.zeros(FEATURES)  # the average of the groups that are well
        self.latest: dict[int, np.ndarray] = {}  # of each of them
        self.steps = 0  # of all groups together
        self.failures = 0
        self.lost = collections.defaultdict(list)  # seconds, by kind of failure

    async def run(self) -> None:
        await self.start_groups()
        self.begin = time.monotonic()
        self.end = self.begin + self.options.seconds
        injecting = asyncio.create_task(self.inject())
        await self.train()
        await injecting
        await asyncio.gather(*(group.kill() for group in self.groups))

    async def start_groups(self) -> None:
        self.groups = [Group(number) for number in range(GROUPS)]
        await asyncio.gather(*(group.start() for group in self.groups))

    async def inject(self) -> None:
        """Each kind of failure in turn; who is hit is a matter of chance, and the same for every job."""
        chance, every = random.Random(self.options.seed), self.options.every
        for number, kind in enumerate(itertools.cycle(FAILURES), start=1):
            group, member = chance.randrange(GROUPS), chance.randrange(MEMBERS)
            if (number + 1) * every > self.options.seconds:
                return
            await asyncio.sleep(self.begin + number * every - time.monotonic())
            while not self.groups[group].well:
                await asyncio.sleep(0.01)
            self.failures += 1
            self.groups[group].suffers = kind
            self.groups[group].trainers.slice(members=member).fail.broadcast(kind)

    async def train(self) -> None:
        await asyncio.gather(*(self.train_group(group) for group in self.groups))

    async def train_group(self, group: Group) -> None:
        while time.monotonic() < self.end:
            begin = time.monotonic()
            parameters, failures = await group.train(self.parameters)
            if failures:
                self.latest.pop(group.number, None)
                await group.recover(failures, self.groups)
                self.lost[group.suffers].append(time.monotonic() - begin)
            else:
                self.note_round(group, parameters)

    def note_round(self, group: Group, parameters: np.ndarray) -> None:
        self.latest[group.number] = parameters
        self.parameters = np.mean(list(self.latest.values()), axis=0)
        self.steps += STEPS


class RestartedJob(Job):
    """The same without recovery: a failure ends all processes, and the job starts again from its last checkpoint."""

    name = "whole job restarts"
    share = 1.0

    async def train(self) -> None:
        self.note_checkpoint()
        while time.monotonic() < self.end:
            self.failed: str | None = None
            await asyncio.gather(*(self.train_group(group) for group in self.groups))
            if self.failed is not None:
                await asyncio.gather(*(group.kill() for group in self.groups))
                await self.start_groups()
                since, self.steps, self.parameters = self.checkpoint
                self.latest.clear()
                self.lost[self.failed].append(time.monotonic() - since)
                self.note_checkpoint()

    async def train_group(self, group: Group) -> None:
        while time.monotonic() < self.end and self.failed is None:
            parameters, failures = await group.train(self.parameters)
            if failures:
                self.failed, group.well = group.suffers, False
            else:
                self.note_round(group, parameters)
                if time.monotonic() > self.checkpoint[0] + CHECKPOINT_S:
                    self.note_checkpoint()

    def note_checkpoint(self) -> None:
        self.checkpoint = time.monotonic(), self.steps, self.parameters


def mean(times: list[float]) -> float:
    return sum(times) / max(1, len(times))


def loss(parameters: np.ndarray, features: np.ndarray, targets: np.ndarray) -> float:
    return float(np.mean((features @ parameters - targets) ** 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12, help="how long each of the two jobs trains (12)")
    parser.add_argument("--every", type=float, default=1, help="seconds between two failures (1)")
    parser.add_argument("--seed", type=int, default=17, help="decides who fails (17)")
    options = parser.parse_args()

    print(f"{GROUPS} groups of {MEMBERS} processes, {options.seconds:g} s, a failure every {options.every:g} s")
    jobs = [Job(options), RestartedJob(options)]
    for job in jobs:
        asyncio.run(job.run())

    everything = [np.concatenate(parts) for parts in zip(*(data(g, m) for g in range(GROUPS) for m in range(MEMBERS)))]
    least = loss(np.linalg.lstsq(*everything, rcond=None)[0], *everything)
    rows = {
        "": [job.name for job in jobs],
        **{f"lost by who stands still: {kind}": [f"{mean(job.lost[kind]):.2f} s" for job in jobs] for kind in FAILURES},
        "failures": [job.failures for job in jobs],
        "lost by the job": [f"{sum(map(sum, job.lost.values())) * job.share:.2f} s" for job in jobs],
        "steps done": [job.steps for job in jobs],
        f"loss, of {least:.5f} at least": [f"{loss(job.parameters, *everything):.5f}" for job in jobs],
    }
    for name, cells in rows.items():
        print(f"{name:36}" + "".join(f"{cell:>24}" for cell in cells))
    for job in jobs:
        assert loss(job.parameters, *everything) < 1.05 * least, f"{job.name}: the loss is wrong"


if __name__ == "__main__":
    main()
