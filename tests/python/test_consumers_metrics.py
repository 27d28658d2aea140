"""How programs collect metrics: a controller, known by name, with one fetcher per mesh of processes.

Code anywhere records values in its own process. A fetcher in each process hands them out; the controller, one for the
whole program, asks all fetchers and reduces. So RL frameworks log (and loggers for whole runs are built like this).
"""

from __future__ import annotations

import asyncio

import pytest

from monarch.actor import Actor, ProcMesh, context, current_rank, endpoint, get_or_spawn_controller, this_host

recorded: dict[str, list[float]] = {}  # of this process


def record(key: str, value: float) -> None:
    recorded.setdefault(key, []).append(value)


class Fetcher(Actor):
    @endpoint
    async def drain(self) -> dict[str, list[float]]:
        drained = dict(recorded)
        recorded.clear()
        return drained


class Metrics(Actor):
    """The controller. Its fetchers are known by the mesh whose processes they are in."""

    def __init__(self):
        self.fetchers: dict[ProcMesh, Fetcher] = {}
        self.lines: list[str] = []

    @endpoint
    async def register(self, procs: ProcMesh, fetcher: Fetcher) -> None:
        self.fetchers[procs] = fetcher

    @endpoint
    async def deregister(self, procs: ProcMesh) -> None:
        del self.fetchers[procs]

    @endpoint
    async def count(self) -> int:
        return len(self.fetchers)

    @endpoint
    async def flush(self, step: int) -> dict[str, float]:
        answers = await asyncio.gather(*[fetcher.drain.call() for fetcher in self.fetchers.values()])
        merged: dict[str, list[float]] = {}
        for mesh in answers:
            for _, drained in mesh.items():
                for key, values in drained.items():
                    merged.setdefault(key, []).extend(values)
        return {key: sum(values) / len(values) for key, values in sorted(merged.items())}


async def metrics_of(procs: ProcMesh) -> Metrics:
    """The controller, told of these processes the first time that they are seen."""
    metrics = await get_or_spawn_controller("test_metrics", Metrics)
    if not hasattr(procs, "_metrics_fetcher"):
        procs._metrics_fetcher = procs.spawn("fetcher", Fetcher)
        await metrics.register.call_one(procs, procs._metrics_fetcher)
    return metrics


class Trainer(Actor):
    @endpoint
    async def step(self, loss: float) -> str:
        record("loss", loss + current_rank().rank)
        return context().actor_instance.actor_id.actor_name

    @endpoint
    async def count_fetchers(self) -> int:
        metrics = await get_or_spawn_controller("test_metrics", Metrics)
        return await metrics.count.call_one()


class Generator(Actor):
    @endpoint
    async def generate(self) -> None:
        record("tokens", 100.0)


@pytest.mark.feature(41, 61)
def test_values_of_several_meshes_meet_in_one_controller(procs):
    async def main():
        others = this_host().spawn_procs(per_host={"generators": 2})
        trainers, generators = procs.spawn("trainer", Trainer), others.spawn("generator", Generator)
        metrics = await metrics_of(procs)
        assert metrics == await metrics_of(others) == await metrics_of(procs)
        assert await metrics.count.call_one() == 2
        assert set((await trainers.count_fetchers.call()).values()) == {2}  # the same one for actors

        assert (await trainers.step.call(1.0)).values() == ["trainer", "trainer"]
        await trainers.step.call(3.0)
        await generators.generate.call()
        assert await metrics.flush.call_one(1) == {"loss": 2.5, "tokens": 100.0}
        assert await metrics.flush.call_one(2) == {}

        await metrics.deregister.call_one(others)  # another copy of the same key
        assert await metrics.count.call_one() == 1
        await others.stop()
        await trainers.step.call(5.0)
        assert await metrics.flush.call_one(3) == {"loss": 5.5}  # nobody asks the processes that are gone
        await metrics.deregister.call_one(procs)
        del procs._metrics_fetcher

    asyncio.run(main())


@pytest.mark.feature(36, 37)
def test_an_actor_is_known_by_its_name_and_its_place(procs):
    class Named(Actor):
        @endpoint
        def who(self) -> tuple[str, str, int, int]:
            instance = context().actor_instance
            return instance.actor_id.actor_name, str(instance.actor_id), instance.rank.rank, instance.rank.size("gpus")

    found = procs.spawn("logger", Named).who.call().get()
    assert [(name, rank, size) for _, (name, _, rank, size) in found.items()] == [("logger", 0, 2), ("logger", 1, 2)]
    assert len({actor_id for _, (_, actor_id, _, _) in found.items()}) == 2
