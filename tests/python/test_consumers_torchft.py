"""How fault-tolerant trainers run replica groups: each has an actor that owns the processes of its group.

When anything in a group fails, its replica's call raises; the orchestrator tears that replica down and starts it again,
on other hosts after some failures, while the other groups go on.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from monarch.actor import Actor, ActorError, HostMesh, SupervisionError, current_rank, endpoint, this_host

GROUPS, RANKS, STEPS = 2, 2, 3


class TrainingActor(Actor):
    """A rank of a group."""

    @endpoint
    async def train(self, steps: int, fault: str | None) -> str:
        if fault is not None and current_rank()["gpus"] == RANKS - 1:
            FAULTS[fault]()
        return f"rank {current_rank().rank} after {steps} steps"


def raise_error() -> None:
    raise ValueError("a worker has lost its way")


FAULTS = {
    "exit": lambda: os._exit(1),
    "segfault": lambda: signal.raise_signal(signal.SIGSEGV),
    "error": raise_error,
}


class Host:
    """Stands for a job that gives out hosts: picklable, and it says which allocation one gets."""

    def __init__(self, allocation: int):
        self.allocation = allocation

    def state(self, cached_path: str | None) -> HostMesh:
        assert cached_path is None
        return this_host()


class ReplicaActor(Actor):
    """Owns the processes of its group: a nested mesh, made and stopped by an actor."""

    def __init__(self, replica: int, job: Host):
        self.replica = replica
        self.job = job

    @endpoint
    async def start_replica(self, fault: str | None) -> tuple[int, list[str]]:
        async with self.job.state(cached_path=None).spawn_procs({"gpus": RANKS}) as procs:
            trainers = procs.spawn("trainer", TrainingActor)
            return self.job.allocation, (await trainers.train.call(STEPS, fault)).values()


class Orchestrator:
    """Runs all replicas, and each again until it succeeds. Every second failure gets a new allocation."""

    def __init__(self, faults: dict[int, list[str]]):
        self.faults = faults
        self.seen: list[tuple[int, type]] = []

    async def run(self) -> list[tuple[int, list[str]]]:
        return await asyncio.gather(*[self.keep_running(replica) for replica in range(GROUPS)])

    async def keep_running(self, replica: int) -> tuple[int, list[str]]:
        failures = 0
        while True:
            fault = self.faults.get(replica, [])[failures : failures + 1]
            procs = this_host().spawn_procs()
            actor = procs.spawn("replica", ReplicaActor, replica, Host(failures // 2))
            try:
                return await actor.start_replica.call_one(*(fault or [None]))
            except Exception as error:
                self.seen.append((replica, type(error)))
                failures += 1
            finally:
                await procs.stop()


@pytest.mark.feature(52, 55, 62, 64)
def test_a_failed_group_is_started_again_and_the_others_do_not_notice():
    orchestrator = Orchestrator({1: ["exit", "segfault", "error"]})
    results = asyncio.run(orchestrator.run())
    done = [f"rank {rank} after {STEPS} steps" for rank in range(RANKS)]
    assert results == [(0, done), (1, done)]
    assert orchestrator.seen == [(1, ActorError)] * 3


@pytest.mark.feature(55, 64)
@pytest.mark.parametrize("fault, text", [("exit", "exited with non-zero code 1"), ("segfault", r"sig=11\)")])
def test_the_reason_reaches_whoever_awaits_the_replica(procs, fault, text):
    replica = procs.slice(gpus=0).spawn("replica", ReplicaActor, 0, Host(0))
    with pytest.raises(ActorError, match=text) as caught:
        replica.start_replica.call_one(fault).get(timeout=20)
    assert isinstance(caught.value.exception, SupervisionError)
    assert replica.start_replica.call_one(None).get(timeout=20)[0] == 0  # the replica itself is well


@pytest.mark.feature(10, 12, 14)
def test_a_quorum_asks_one_all_and_nobody(procs):
    class Lighthouse(Actor):
        def __init__(self):
            self.beats = 0

        @endpoint
        async def beat(self) -> None:
            self.beats += 1

        @endpoint
        async def count(self) -> int:
            return self.beats

    lighthouses = procs.spawn("lighthouse", Lighthouse)
    lighthouses.beat.broadcast()
    lighthouses.beat.choose().get()
    assert sorted(lighthouses.count.call().get().values()) == [1, 2]


@pytest.mark.feature(82)
def test_output_of_a_group_is_switched_while_it_runs():
    async def main():
        async with this_host().spawn_procs({"gpus": RANKS}) as procs:
            await procs.logging_option(stream_to_client=True)
            await procs.logging_option(aggregate_window_sec=None)
            assert len(await procs.spawn("trainer", TrainingActor).train.call(1, None)) == RANKS

    asyncio.run(main())
