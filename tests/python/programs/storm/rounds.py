"""One round of a storm: a mesh that works, comes to harm, and must behave. Rounds know nothing of each other."""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import faults
import work
from faults import ACTOR, NOTHING, PROCESS, Fault
from storm_actors import AsyncOwner, AsyncWorker, Owner, SyncOwner, Worker
from told import told
from verdict import LIMIT, Wrong, settle, tally

from monarch.actor import this_host

GONE_WITHIN = 2.0  # seconds after a stop
STEPS = 6  # of work before the harm, and after it


class Round:
    """A mesh of processes with workers on it. ``name`` is a part of the names of its meshes."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng = name, rng
        self.ranks = range(rng.choice([1, 2, 2, 3, 4]))
        self.met: dict[int, list[Fault]] = {rank: [] for rank in self.ranks}

    def run(self) -> None:
        self.procs = this_host().spawn_procs({"gpus": len(self.ranks)}, name=f"{self.name}-procs")
        self.workers = self.procs.spawn(f"{self.name}-workers", self.rng.choice([Worker, AsyncWorker]))
        self.pids = [pid for _, pid in self.workers.pid.call().get(LIMIT).values()]
        with self.followed(self.pids) as pidfds:
            begun = self.begin_work() + self.begin_work_of_newcomers()
            self.come_to_harm()
            begun += self.begin_work()
            self.end_what_passes()
            for settle_it in begun:
                settle_it(self.harm_of)
            self.wait_for_the_dying(pidfds)
            self.check_survivors()
            self.check_told()
            self.procs.stop().get(LIMIT)
        for mesh in ("procs", "workers", "late"):
            told.settle(f"{self.name}-{mesh}", self.met)
        tally.add("rounds")

    def harm_of(self, ranks: Iterable[int]) -> list[Fault]:
        return [fault for rank in ranks for fault in self.met[rank] if fault.ends != NOTHING]

    def begin_work(self) -> list[work.Settle]:
        return [self.begin_one(self.workers) for _ in range(self.rng.randrange(STEPS))]

    def begin_one(self, workers: Any) -> work.Settle:
        return self.rng.choice(work.KINDS)(self.rng, workers, self.ranks)

    def begin_work_of_newcomers(self) -> list[work.Settle]:
        """Of a second mesh on the same processes. The constructors of some of its ranks raise."""
        if self.rng.random() < 0.5:
            return []
        word = f"{self.name}-constructor"
        failing = tuple(rank for rank in self.ranks if self.rng.random() < 0.3)
        for rank in failing:
            self.met[rank].append(Fault("a constructor", ACTOR, word))
        late = self.procs.spawn(f"{self.name}-late", Worker, failing, word)
        return [self.begin_one(late) for _ in range(2)]

    def come_to_harm(self) -> None:
        for rank in self.rng.sample(self.ranks, self.rng.randint(0, min(2, len(self.ranks)))):
            if self.met[rank]:
                continue
            wait(self.rng.uniform(0, 0.003))
            worker = self.workers.slice(gpus=rank)
            fault = faults.strike(self.rng, worker, self.pids[rank], f"{self.name}-harm", self.met[rank].append)
            tally.add(f"x {fault.name}")

    def end_what_passes(self) -> None:
        wait(self.rng.uniform(0, 0.1))
        for rank in self.ranks:
            for fault in self.met[rank]:
                faults.pass_over(fault, self.pids[rank])

    def wait_for_the_dying(self, pidfds: list[int]) -> None:
        """A signal that has been sent is dealt with later, by one thread; the others may answer until then."""
        for rank in self.ranks:
            if any(fault.ends == PROCESS for fault in self.met[rank]):
                if not select.select([pidfds[rank]], [], [], LIMIT)[0]:
                    raise Wrong(f"rank {rank} is there {LIMIT} s after {self.met[rank]}")

    def check_survivors(self) -> None:
        for rank in self.ranks:
            harm = [fault for fault in self.met[rank] if fault.ends != NOTHING and fault.name != "a constructor"]
            x = self.rng.randrange(1000)
            future = self.workers.slice(gpus=rank).square.call_one(x)
            answered = settle("survivor", future.get, lambda a, right=(rank, x * x): a == right, harm)
            if answered and any(fault.ends in (PROCESS, ACTOR) for fault in harm):
                raise Wrong(f"rank {rank} answers after {harm}")

    def check_told(self) -> None:
        for rank in self.ranks:
            for fault in self.met[rank]:
                if fault.ends == PROCESS:
                    told.wait_for(f"{self.name}-procs", rank, fault)
                if fault.ends == PROCESS or (fault.ends == ACTOR and fault.name != "a constructor"):
                    told.wait_for(f"{self.name}-workers", rank, fault)

    @staticmethod
    @contextlib.contextmanager
    def followed(pids: list[int], within: float = GONE_WITHIN) -> Iterator[list[int]]:
        """These processes are gone soon after the end."""
        pidfds = [os.pidfd_open(pid) for pid in pids]
        try:
            yield pidfds
            deadline = time.monotonic() + within
            for pid, pidfd in zip(pids, pidfds):
                if not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise Wrong(f"process {pid} is still there {within} s after its mesh was stopped")
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class OwnersRound(Round):
    """An actor that owns processes, one of which comes to harm."""

    def run(self) -> None:
        self.begin(self.rng.choice(["handles", "declines", "raises"]), self.rng.choice([SyncOwner, AsyncOwner]))
        with self.followed(self.pids):
            pending = self.owner.squares.call_one(3)
            rank = self.rng.randrange(2)
            fault = self.harm(self.kids.slice(gpus=rank), self.pids[rank])
            settle("of an owner", pending.get, lambda answers: answers == [(0, 9), (1, 9)], self.met[0])
            self.check_owner(fault)
            self.procs.stop().get(LIMIT)
        told.settle(f"{self.name}-procs", {})
        told.settle(f"{self.name}-owner", self.met)
        tally.add(f"rounds of an owner that {self.answer}")

    def begin(self, answer: str, kind: type[Owner]) -> None:
        self.answer = answer
        self.procs = this_host().spawn_procs(name=f"{self.name}-procs")
        self.owner = self.procs.spawn(f"{self.name}-owner", kind, answer, self.name)
        self.kids = self.owner.kids.call_one().get(LIMIT)
        self.pids = [pid for _, pid in self.kids.pid.call().get(LIMIT).values()]
        self.met = {0: []}

    def harm(self, one: Any, pid: int) -> Fault:
        fault = faults.strike(self.rng, one, pid, f"{self.name}-harm", self.met[0].append, lasting=True)
        tally.add(f"x {fault.name} of an owner's")
        return fault

    def check_owner(self, fault: Fault) -> None:
        if self.answer == "handles":
            self.wait_until_asked(fault)
            self.owner.replace.call_one().get(LIMIT)
            settle("of an owner again", self.owner.squares.call_one(2).get, lambda a: a == [(0, 4), (1, 4)], [])
            return
        told.wait_for(f"{self.name}-owner", 0, fault)
        if settle("of a failed owner", self.owner.squares.call_one(2).get, lambda a: True, [fault]):
            raise Wrong(f"an owner that {self.answer} lives on")

    def wait_until_asked(self, fault: Fault) -> None:
        deadline = time.monotonic() + LIMIT
        while not (failures := self.owner.failures.call_one().get(LIMIT)):
            if time.monotonic() > deadline:
                raise Wrong(f"an owner was never asked about {fault.name}")
            wait(0.01)
        for mesh, rank, report in failures:
            if not fault.is_reason(report):
                raise Wrong(f"an owner was asked about rank {rank} of {mesh} without a reason: {report}")


class HooklessOwnersRound(OwnersRound):
    """An owner without ``__supervise__``. It fails too, unless its call has told it: then that call says so."""

    def run(self) -> None:
        self.begin("has no hook", Owner)
        with self.followed(self.pids):
            rank = self.rng.randrange(2)
            pending = self.owner.squares.call_one(3)
            fault = self.harm(self.kids.slice(gpus=rank), self.pids[rank])
            settle("of an owner", pending.get, lambda answers: answers == [(0, 9), (1, 9)], [fault])
            gone = settle("of what is gone", self.kids.slice(gpus=rank).square.call_one(1).get, lambda a: True, [fault])
            if gone or settle("of an owner", self.owner.squares.call_one(1).get, lambda a: True, [fault]):
                raise Wrong(f"rank {rank} of an owner's answers after {fault}")
            self.procs.stop().get(LIMIT)
        told.settle(f"{self.name}-procs", {})
        told.settle(f"{self.name}-owner", self.met)
        tally.add(f"rounds of an owner that {self.answer}")


class OrphansRound(OwnersRound):
    """The owner's own process comes to harm: what it has spawned ends with it."""

    def run(self) -> None:
        self.begin("dies", self.rng.choice([Owner, SyncOwner, AsyncOwner]))
        with self.followed(self.pids):
            pid = self.owner.pid.call_one().get(LIMIT)
            pending, of_kids = self.owner.squares.call_one(3), self.kids.square.call(3)
            fault = self.harm(self.owner, pid)
            lost = Fault(fault.name, fault.ends, f"{fault.explains}|its owner .* has ended")
            settle("of a dead owner", pending.get, lambda answers: answers == [(0, 9), (1, 9)], [fault])
            settle("of orphans", of_kids.get, work.same_for_all(range(2), 9), [lost])
            told.wait_for(f"{self.name}-owner", 0, fault)
        if settle("of orphans", self.kids.square.call(3).get, lambda a: True, [lost]):
            raise Wrong("orphans live on")
        self.procs.stop().get(LIMIT)
        told.settle(f"{self.name}-procs", self.met)
        told.settle(f"{self.name}-owner", self.met)
        tally.add("rounds of orphans")


KINDS: list[tuple[int, type[Round]]] = [(6, Round), (2, OwnersRound), (1, HooklessOwnersRound), (1, OrphansRound)]
