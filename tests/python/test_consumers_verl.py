"""How an RL library maps its single controller on actors, in two ways.

The older way: worker classes of the library become actors, with every registered method as an endpoint and one message
per rank, since each rank gets its own part of the data. The newer way: one generic endpoint that runs methods by name,
equal parts for neighbouring ranks being sent as one message to a slice.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import pytest

from monarch._actors.declarations import EndpointProperty
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    send,
    this_host,
)
from monarch.config import configured

# ---- The library: workers, and a decorator that says how data is given out and collected ----

DISPATCH = "library_dispatch"


def register(mode: str, blocking: bool = True):
    def decorate(function):
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        setattr(inner, DISPATCH, {"mode": mode, "blocking": blocking})
        return inner

    return decorate


class Worker:
    """Knows nothing of actors."""

    def __init__(self, role: str, **config: Any):
        self.role, self.config = role, config
        self.rank, self.world_size = current_rank().rank, current_size()

    @register("all")
    def describe(self, suffix: str = "") -> str:
        return f"{self.role} {self.rank}{suffix}"

    @register("split", blocking=False)
    def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    @register("rank zero")
    def save(self, path: str) -> str:
        return f"{self.rank} saved {path}"

    @register("all")
    def fail(self, rank: int) -> None:
        if self.rank == rank:
            raise ValueError(f"rank {rank} has failed")

    def not_registered(self) -> None: ...


# ---- The older way ----


class WorkerGroup:
    """A mesh of actors made of a worker class, with a method for each registered one."""

    def __init__(self, procs: Any, cls: type, *args: Any, **kwargs: Any):
        endpoints = {
            name: endpoint(getattr(cls, name)) for name in dir(cls) if hasattr(getattr(cls, name), DISPATCH)
        }  # the decorated function stays reachable, with its attributes
        actor_class = type(f"{cls.__name__}Actor", (cls, Actor), endpoints)
        self.mesh = procs.spawn(cls.__name__.lower(), actor_class, *args, **kwargs).flatten("rank")
        for name in dir(actor_class):
            found = getattr(actor_class, name)
            if isinstance(found, EndpointProperty):
                setattr(self, name, functools.partial(self._call, name, **getattr(found._method, DISPATCH)))

    def _call(self, name: str, *args: Any, mode: str, blocking: bool) -> Any:
        size = self.mesh.size()
        if mode == "split":
            (data,) = args
            share = len(data) // size
            parts = [(data[rank * share : (rank + 1) * share],) for rank in range(size)]
        else:
            parts = [args] * (1 if mode == "rank zero" else size)
        futures = []
        for rank, part in enumerate(parts):
            port, receiver = Channel.open(once=True)
            send(getattr(self.mesh.slice(rank=rank), name), part, {}, port=port, selection="choose")
            future = receiver.recv()
            future.rank = rank  # the library notes on a future what it will want to know
            future.method_name = name
            futures.append(future)
        return self._collect(futures, mode) if blocking else lambda: self._collect(futures, mode)

    def _collect(self, futures: list[Any], mode: str) -> Any:
        assert [future.rank for future in futures] == list(range(len(futures)))
        values = [future.get(timeout=20) for future in futures]
        if mode == "split":
            return [value for part in values for value in part]
        return values[0] if mode == "rank zero" else values


@pytest.fixture(scope="module")
def pool():
    with this_host().spawn_procs(per_host={"nodes": 2, "gpus": 2}) as procs:
        yield procs


@pytest.mark.feature(8, 15, 22, 29, 44)
def test_registered_methods_of_a_worker_class_become_endpoints(pool):
    group = WorkerGroup(pool, Worker, "actor", lr=1)
    assert group.mesh.size() == 4
    assert group.describe("!") == ["actor 0!", "actor 1!", "actor 2!", "actor 3!"]
    later = group.double([1, 2, 3, 4])
    assert group.save("x") == "0 saved x"
    assert later() == [2, 4, 6, 8]
    assert not hasattr(group, "not_registered")
    with pytest.raises(ActorError, match="rank 2 has failed"):
        group.fail(2)
    assert len(group.describe()) == 4


class Stacked(Worker, Actor):
    """Both decorators at the method, the attributes of the inner one being looked up through the outer one."""

    @endpoint
    @register("all")
    def where(self) -> tuple[str, int]:
        return self.role, context().actor_instance.rank.rank


@pytest.mark.feature(4, 8)
def test_stacked_decorators_keep_their_attributes(pool):
    assert getattr(Stacked.where._method, DISPATCH) == {"mode": "all", "blocking": True}
    assert Stacked.where._method.__name__ == "where"
    workers = pool.spawn("stacked", Stacked, "critic")
    assert workers.where.call().get().values() == [("critic", rank) for rank in range(4)]


@pytest.mark.feature(22)
def test_futures_of_all_kinds_take_attributes(pool):
    workers = pool.spawn("stacked", Stacked, "critic")
    port, receiver = Channel[int].open()
    port.send(1)
    for future in (workers.where.call(), workers.slice(nodes=0, gpus=0).where.call_one(), receiver.recv()):
        future.note = "mine"
        future.get(timeout=20)
        assert future.note == "mine"


# ---- The newer way ----


class Runner(Actor):
    """Holds workers of several roles, and runs their methods by name."""

    def __init__(self, roles: dict[str, tuple[type, dict]]):
        self.workers = {name: cls(name, **config) for name, (cls, config) in roles.items()}
        self.messages = 0

    @concurrent_endpoint
    async def run(self, role: str, method: str, args: tuple, kwargs: dict) -> Any:
        self.messages += 1
        return getattr(self.workers[role], method)(*args, **kwargs)

    @endpoint
    async def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    async def executable(self) -> str:
        return sys.executable


def merged(payloads: list[Any]) -> list[tuple[slice, Any]]:
    """Neighbours with the same payload, as slices of ranks."""
    found: list[tuple[slice, Any]] = []
    for rank, payload in enumerate(payloads):
        if found and found[-1][1] == payload:
            found[-1] = (slice(found[-1][0].start, rank + 1), payload)
        else:
            found.append((slice(rank, rank + 1), payload))
    return found


class Group:
    def __init__(self, procs: Any, roles: dict[str, tuple[type, dict]]):
        procs.initialized.get(timeout=20)
        spawned = procs.spawn("runner", Runner, roles)
        spawned.initialized.get(timeout=20)
        self.runners = spawned.flatten("rank")

    def run(self, role: str, method: str, payloads: list[tuple]) -> list[Any]:
        futures = [
            self.runners.slice(rank=ranks).run.call(role, method, payload, {}) for ranks, payload in merged(payloads)
        ]
        return [value for future in futures for value in future.get(timeout=20).values()]


ROLES = {"actor": (Worker, {"lr": 1}), "critic": (Worker, {})}


@pytest.mark.feature(5, 43, 51)
def test_neighbouring_ranks_with_the_same_payload_get_one_message(pool):
    group = Group(pool, ROLES)
    payloads = [("a",), ("a",), ("b",), ("a",)]
    assert [ranks for ranks, _ in merged(payloads)] == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert group.run("critic", "describe", payloads) == ["critic 0a", "critic 1a", "critic 2b", "critic 3a"]
    assert group.run("actor", "double", [([rank],) for rank in range(4)]) == [[0], [2], [4], [6]]


@pytest.mark.feature(52, 72)
def test_what_was_stopped_says_so():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    group = Group(procs, ROLES)
    procs.stop().get(timeout=20)
    with pytest.raises(SupervisionError, match="stopped"):
        group.run("actor", "describe", [()] * 2)


@pytest.mark.feature(77)
def test_the_limits_that_the_library_configures_are_taken():
    with configured(
        host_spawn_ready_timeout="120s", mesh_proc_spawn_max_idle="120s", actor_spawn_max_idle="120s",
        get_actor_state_max_idle="120s", process_exit_timeout="30s", proc_stop_max_idle="120s",
    ) as config:  # fmt: skip
        assert config["process_exit_timeout"] == "30s"
        Group(this_host().spawn_procs(per_host={"gpus": 1}), ROLES)


@pytest.mark.feature(50)
def test_commands_are_rebuilt_and_differ_by_point():
    from monarch.actor import default_bootstrap_cmd

    def command_of(point: Any) -> Any:
        command = default_bootstrap_cmd()
        env = {**command.env, "LIBRARY_RANK": str(point.rank), "LIBRARY_GPU": str(point["gpus"])}
        return type(command)(command.program, command.arg0, command.args, env)

    procs = this_host().spawn_procs(per_host={"nodes": 2, "gpus": 2}, bootstrap_command=command_of)
    runners = procs.spawn("runner", Runner, {})
    assert runners.environment.call("LIBRARY_RANK").get().values() == ["0", "1", "2", "3"]
    assert runners.environment.call("LIBRARY_GPU").get().values() == ["0", "1", "0", "1"]
    procs.stop().get(timeout=20)


@pytest.mark.feature(50)
def test_another_interpreter(tmp_path):
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    host = this_host().with_python_executable(str(link))
    assert host.size() == 1
    with host.spawn_procs() as procs:
        assert procs.spawn("runner", Runner, {}).executable.call_one().get(timeout=20) == str(link)


def test_the_private_way_to_a_handle_of_a_running_operation(pool):
    handle = Group(pool, ROLES).runners.environment.call("HOME")._take_inner().spawn_handle()
    assert handle.get(timeout=20).values() == [os.environ.get("HOME")] * 4


@pytest.mark.feature(89)
def test_jobs_of_processes():
    from monarch.job import ProcessJob

    job = ProcessJob({"hosts": 2}, env={"LIBRARY_FLAG": "on"})
    try:
        hosts = job.state(cached_path=None).hosts
        runners = hosts.spawn_procs(per_host={"gpus": 1}).spawn("runner", Runner, {})
        assert runners.environment.call("LIBRARY_FLAG").get(timeout=20).values() == ["on", "on"]
    finally:
        job.kill()


@pytest.mark.feature(29)
def test_a_once_port_takes_one_message():
    port: Port[int]
    port, receiver = Channel[int].open(once=True)
    port.send(1)
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.send(2)
    assert receiver.recv().get(timeout=20) == 1
    with pytest.raises(ValueError, match="OncePort is already used"):
        receiver.recv()
