"""How services are built over actors: a mesh behind each replica, a router before them, endpoints found on the class.

The service wraps whatever endpoints an actor class declares, asks a healthy replica for each call, keeps sessions where
they were, and replaces replicas that have died. All of it is ordinary asyncio code of the caller.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import monarch.actor
from monarch._actors.declarations import EndpointProperty
from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    current_size,
    endpoint,
    this_host,
)


class Replica:
    def __init__(self, cls: type[Actor], args: tuple):
        self.procs = this_host().spawn_procs(per_host={"gpus": 2}, name="replica")
        self.actors = self.procs.spawn(cls.__name__.lower(), cls, *args)
        self.healthy = True
        self.load = 0

    async def ask(self, name: str, args: tuple) -> Any:
        self.load += 1
        try:
            await asyncio.sleep(0)  # an answer may be faster than the next request: that one is to see this one busy
            return await getattr(self.actors, name).call(*args)
        except SupervisionError:
            self.healthy = False
            raise
        finally:
            self.load -= 1


class Service:
    """Every endpoint of the class becomes a method that routes to a replica, the least loaded one."""

    def __init__(self, cls: type[Actor], replicas: int, *args: Any):
        self._make = lambda: Replica(cls, args)
        self._replicas = [self._make() for _ in range(replicas)]
        self._sessions: dict[str, Replica] = {}
        for name in dir(cls):
            if isinstance(getattr(cls, name), EndpointProperty):
                setattr(self, name, self._method(name))

    def _method(self, name: str):
        async def ask(*args: Any, session: str | None = None) -> Any:
            return await self._route(session).ask(name, args)

        return ask

    def _route(self, session: str | None) -> Replica:
        replica = self._sessions.get(session)
        if replica is None or not replica.healthy:
            replica = min((r for r in self._replicas if r.healthy), key=lambda r: r.load)
            if session is not None:
                self._sessions[session] = replica
        return replica

    async def heal(self) -> int:
        dead = [replica for replica in self._replicas if not replica.healthy]
        for replica in dead:
            await replica.procs.stop()
            self._replicas[self._replicas.index(replica)] = self._make()
        return len(dead)

    async def stop(self) -> None:
        await asyncio.gather(*[replica.procs.stop() for replica in self._replicas])


class Generator(Actor):
    def __init__(self, greeting: str):
        self.greeting = greeting
        self.calls = 0

    @endpoint
    async def generate(self, prompt: str) -> str:
        self.calls += 1
        return f"{self.greeting} {prompt} {current_rank().rank}/{current_size()['gpus']}"

    @endpoint
    async def where(self) -> int:
        return os.getpid()

    @endpoint
    async def count(self) -> int:
        return self.calls

    @endpoint
    async def refuse(self) -> None:
        raise ValueError("not this one")

    @endpoint
    async def crash(self) -> None:
        os._exit(1)

    def helper(self) -> None: ...


@pytest.mark.feature(1, 62, 64, 68)
def test_a_service_routes_keeps_sessions_and_replaces_what_dies():
    async def main():
        service = Service(Generator, 2, "hello")
        assert not hasattr(service, "helper")
        assert (await service.generate("you")).values() == ["hello you 0/2", "hello you 1/2"]

        places = {tuple((await service.where(session="a")).values()) for _ in range(3)}
        assert len(places) == 1  # a session stays
        both = await asyncio.gather(service.where(), service.where())
        assert len({pid for place in both for _, pid in place.items()}) == 4  # the second finds the first one busy

        with pytest.raises(ActorError) as caught:
            await service.refuse(session="a")
        assert isinstance(caught.value.exception, ValueError)
        assert {tuple((await service.where(session="a")).values())} == places  # an exception is not ill health

        with pytest.raises(SupervisionError):
            await service.crash(session="a")
        moved = tuple((await service.where(session="a")).values())
        assert {moved} != places
        assert await service.heal() == 1 and await service.heal() == 0
        both = await asyncio.gather(service.where(), service.where())
        assert len({pid for place in both for _, pid in place.items()} - set(*places)) == 4
        await service.stop()

    asyncio.run(main())


class ForgeActor(Actor):
    """A base class whose class methods spawn it, and keep what they need on the mesh."""

    @classmethod
    async def launch(cls, procs: ProcMesh, *args: Any) -> Any:
        mesh = procs.spawn(cls.__name__, cls, *args)
        assert isinstance(mesh, ActorMesh)
        mesh._proc_mesh = procs
        await mesh.setup.call()
        return mesh

    @classmethod
    async def shutdown(cls, mesh: Any) -> None:
        assert mesh._class is cls
        await mesh._proc_mesh.stop()

    @endpoint
    async def setup(self) -> None:
        self.ready = True


class Policy(ForgeActor):
    @endpoint
    async def describe(self) -> tuple[bool, str, list[str], int]:
        instance = context().actor_instance
        return self.ready, instance.actor_id.actor_name, list(instance.rank.extent.labels), instance.rank.size("gpus")


@pytest.mark.feature(42, 43)
def test_meshes_keep_attributes_and_tell_their_class_and_extent():
    async def main():
        policy = await Policy.launch(this_host().spawn_procs(per_host={"hosts": 1, "gpus": 2}))
        assert list(policy.extent.keys()) == policy.extent.labels == ["hosts", "gpus"]
        first = policy.slice(**{label: slice(0, 1) for label in policy.extent.keys()})
        point, described = next(iter((await first.describe.call()).items()))
        assert (point.rank, described) == (0, (True, "Policy", ["hosts", "gpus"], 2))
        await Policy.shutdown(policy)
        with pytest.raises(SupervisionError, match="stopped"):
            await policy.describe.call()

    asyncio.run(main())


@pytest.mark.feature(26)
def test_items_of_a_value_mesh_is_an_iterator(procs):
    point, value = next(procs.spawn("g", Generator, "hi").generate.call("x").get().items())
    assert (point.rank, value) == (0, "hi x 0/2")


def test_the_private_paths_that_services_import():
    from monarch._src.actor.actor_mesh import ActorMesh as private_mesh
    from monarch._src.actor.actor_mesh import current_rank as private_rank
    from monarch._src.actor.endpoint import EndpointProperty as private_property

    assert (private_mesh, private_rank, private_property) == (ActorMesh, current_rank, EndpointProperty)


def test_a_program_replaces_the_fault_hook(procs, monkeypatch):
    faults: list[Any] = []

    async def main():
        loop, seen = asyncio.get_running_loop(), asyncio.Event()

        def hook(failure):  # on a thread of the runtime
            faults.append(failure)
            loop.call_soon_threadsafe(seen.set)

        monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", hook)
        others = this_host().spawn_procs(per_host={"gpus": 1})
        others.spawn("doomed", Generator, "bye").crash.broadcast()
        await asyncio.wait_for(seen.wait(), 20)
        assert "doomed" in faults[0].report()

    asyncio.run(main())
