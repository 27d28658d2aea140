"""How trainers for large models use the package: a simple trainer mesh, and the RL loop of generators behind a router.

House rules there: every endpoint is concurrent, handles are constructor arguments, ports travel by whatever means.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys

import cloudpickle
import pytest

from monarch.actor import (
    Actor,
    Channel,
    HostMesh,
    Port,
    ProcMesh,
    concurrent_endpoint,
    current_rank,
    current_size,
    endpoint,
    this_host,
)


class Trainer(Actor):
    """The simple form: a rank that runs what `torchrun` would."""

    def __init__(self, config: dict):
        self.config = config
        self.rank = current_rank().rank

    @endpoint
    async def start_training(self) -> tuple[int, int]:
        return self.rank, self.config["steps"]

    @endpoint
    async def environment(self) -> dict[str, str]:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TITAN_FLAG")
        return {name: os.environ[name] for name in names if name in os.environ}


@pytest.mark.feature(1, 10, 47)
def test_a_trainer_on_each_rank():
    async def main():
        procs = this_host().spawn_procs({"gpus": 3})
        trainers = procs.spawn("trainer", Trainer, {"steps": 7})
        assert (await trainers.start_training.call()).values() == [(0, 7), (1, 7), (2, 7)]
        await procs.stop()

    asyncio.run(main())


@pytest.mark.feature(94)
def test_the_environment_of_torchrun_is_set_on_each_rank():
    from monarch.spmd import setup_torch_elastic_env_async

    async def main():
        procs = this_host().spawn_procs({"gpus": 2})
        await setup_torch_elastic_env_async(procs)
        trainers = procs.spawn("trainer", Trainer, {})
        found = (await trainers.environment.call()).values()
        assert [env["RANK"] for env in found] == [env["LOCAL_RANK"] for env in found] == ["0", "1"]
        assert {env["WORLD_SIZE"] for env in found} == {"2"}
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found}) == 1
        await procs.stop()

    asyncio.run(main())


# ---- The RL loop ----

IMPORTED_EARLY = "fractions"  # stands for torch: slow to import, and not wanted in the middle of a message


def import_early() -> None:
    __import__(IMPORTED_EARLY)


class Generator(Actor):
    """A rank of an engine. Rank 0 takes requests; weights come to all ranks."""

    def __init__(self, name: str):
        self.name = name
        self.version = 0
        self.updated = asyncio.Condition()
        assert IMPORTED_EARLY in sys.modules

    @concurrent_endpoint
    async def generate(self, prompt: str, version: int) -> str:
        """Waits for weights that are recent enough, while other calls go on, that with the weights among them."""
        async with self.updated:
            await self.updated.wait_for(lambda: self.version >= version)
        return f"{prompt} by {self.name} v{self.version}"

    @concurrent_endpoint
    async def pull_weights(self, version: int) -> tuple[int, dict[str, int]]:
        async with self.updated:
            self.version = version
            self.updated.notify_all()
        return current_rank().rank, current_size()


class Router(Actor):
    """Handles of all generators come with the constructor; requests go round among them."""

    def __init__(self, generators: list[Generator]):
        self.rank0 = [mesh.flatten("rank").slice(rank=0) for mesh in generators]
        self.next = 0

    @concurrent_endpoint
    async def generate(self, prompt: str, version: int) -> str:
        chosen = self.rank0[self.next % len(self.rank0)]
        self.next += 1
        return await chosen.generate.call_one(prompt, version)

    @concurrent_endpoint
    async def generate_to(self, prompts: list[str], encoded: str) -> None:
        """The port came as text, by a way that is none of the actors' business, and works all the same."""
        port: Port[str] = cloudpickle.loads(base64.b64decode(encoded))
        for prompt in prompts:
            port.send(await self.generate(prompt, 0))

    @concurrent_endpoint
    async def slowest(self, prompts: list[str]) -> list[str]:
        return await asyncio.gather(*[self.rank0[0].generate.call_one(prompt, 0) for prompt in prompts])


class Controller:
    def __init__(self, host: HostMesh):
        assert len(host) == 1
        self.meshes: list[ProcMesh] = [host.spawn_procs(per_host={"gpus": 2}, bootstrap=import_early) for _ in range(2)]
        self.generators = [mesh.spawn("generator", Generator, f"g{i}") for i, mesh in enumerate(self.meshes)]
        self.meshes.append(host.spawn_procs())
        self.router = self.meshes[-1].spawn("router", Router, self.generators)

    async def close(self) -> None:
        await asyncio.gather(*[mesh.stop() for mesh in self.meshes])


@pytest.mark.feature(5, 21, 44, 48)
def test_requests_wait_for_weights_and_weights_do_not_wait_for_requests():
    async def main():
        controller = Controller(this_host())
        waiting = [controller.router.generate.call_one(f"p{i}", 1) for i in range(4)]
        await controller.router.generate.call_one("p", 0)  # overtakes them
        for mesh in controller.generators:
            pulled = await mesh.pull_weights.call(1)
            assert pulled.get(0) == (0, {"gpus": 2}) and pulled.get(1) == (1, {"gpus": 2})
        assert sorted(await asyncio.gather(*waiting)) == [
            "p0 by g0 v1", "p1 by g1 v1", "p2 by g0 v1", "p3 by g1 v1",
        ]  # fmt: skip
        assert await controller.generators[0].slice(gpus=0).generate.call_one("q", 1) == "q by g0 v1"
        await controller.close()

    asyncio.run(main())


@pytest.mark.feature(28, 31)
def test_a_port_that_was_pickled_by_the_program_itself():
    async def main():
        controller = Controller(this_host())
        port, receiver = Channel[str].open()
        encoded = base64.b64encode(cloudpickle.dumps(port)).decode()
        await controller.router.generate_to.call_one(["a", "b"], encoded)
        assert [await receiver.recv(), await receiver.recv()] == ["a by g0 v0", "b by g1 v0"]
        await controller.close()

    asyncio.run(main())


@pytest.mark.feature(48, 50)
def test_variables_are_in_the_environment_in_which_processes_start():
    from monarch.actor import default_bootstrap_cmd

    async def main():
        command = default_bootstrap_cmd().with_env({"TITAN_FLAG": "on"})
        procs = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=import_early, bootstrap_command=command)
        trainers = procs.spawn("trainer", Trainer, {})
        assert [env["TITAN_FLAG"] for env in (await trainers.environment.call()).values()] == ["on", "on"]
        assert "TITAN_FLAG" not in os.environ
        await procs.stop()

    asyncio.run(main())


@pytest.mark.feature(43, 44)
def test_the_first_rank_of_a_mesh_of_hosts_and_gpus():
    async def main():
        procs = this_host().spawn_procs(per_host={"hosts": 2, "gpus": 1})
        trainers = procs.spawn("trainer", Trainer, {"steps": 1})
        assert await trainers.slice(hosts=0, gpus=0).start_training.call_one() == (0, 1)
        assert await trainers.flatten("rank").slice(rank=1).start_training.call_one() == (1, 1)
        await procs.stop()

    asyncio.run(main())
