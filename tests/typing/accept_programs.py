"""Programs that a type checker accepts, and the types that it sees. tests/python/test_typing.py runs mypy over them."""

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

from monarch.actor import (
    Accumulator,
    Actor,
    Channel,
    Endpoint,
    Future,
    HostMesh,
    Point,
    Port,
    PortReceiver,
    ValueMesh,
    as_endpoint,
    attach_to_workers,
    concurrent_endpoint,
    context,
    current_rank,
    deadline,
    endpoint,
    get_or_spawn_controller,
    returns_future,
    send,
    start_worker_loop_forever,
    this_host,
    this_proc,
)
from monarch.job import new_service_proc_id, service_proc_addrs
from monarch.spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch.testing import local_procs, patch_actor
from monarch.tools.network import AddrType


class Counter(Actor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value = start

    @endpoint
    def add(self, by: int, times: int = 1) -> int:
        self.value += by * times
        return self.value

    @endpoint
    async def name(self) -> str:
        return f"{context().actor_instance.name} {current_rank().rank}"

    @endpoint(instrument=False)
    def nothing(self) -> None: ...

    @endpoint()
    async def floats(self, *values: float, scale: float = 1.0) -> list[float]:
        return [value * scale for value in values]

    @concurrent_endpoint
    async def waits(self, seconds: float) -> bool:
        return True

    @concurrent_endpoint(instrument=False)
    async def waits_too(self) -> bytes:
        return b""

    @endpoint(explicit_response_port=True)
    def answers(self, port: Port[str], question: int) -> None:
        port.send(str(question))

    @concurrent_endpoint(explicit_response_port=True)
    async def answers_later(self, port: Port[int]) -> None:
        port.exception(ValueError("no"))

    def plain(self, x: int) -> float:
        return x / 2

    async def plain_async(self) -> str:
        return ""

    def plain_port(self, port: Port[int], x: str) -> None:
        port.send(len(x))


class Child(Counter):
    def __init__(self) -> None:
        super().__init__(0)

    @endpoint
    def peers(self, others: Counter) -> list[int]:
        return others.add.call(1).get().values()

    @endpoint
    def report(self, tell: Endpoint[[str], None], port: Port[float]) -> None:
        tell.broadcast("hello")
        port.send(1.5)


procs = this_host().spawn_procs(per_host={"gpus": 2})
counters = procs.spawn("counters", Counter, 1, step=2)
assert_type(counters, Counter)
assert_type(procs.spawn("child", Child), Child)
assert_type(procs.options(per_proc={"actors": 8}).spawn("swarm", Child), Child)
assert_type(get_or_spawn_controller("one", Counter, 1), Future[Counter])

# Adverbs
assert_type(counters.add.call(1), Future[ValueMesh[int]])
assert_type(counters.add.call(by=1, times=2).get(), ValueMesh[int])
assert_type(counters.add.call_one(1), Future[int])
assert_type(counters.add.choose(1).get(timeout=1.0), int)
assert_type(counters.add.stream(1), Iterator[Future[int]])
counters.add.broadcast(1, times=3)
assert_type(counters.name.call_one().get(), str)
assert_type(counters.floats.call_one(1, 2.5, scale=2).get(), list[float])
assert_type(counters.waits.call_one(1.0).result(), bool)
assert_type(counters.waits_too.call_one().exception(), Exception | None)
assert_type(counters.nothing.call().get(), ValueMesh[None])
assert_type(counters.add.options(deadline=5).call_one(1).get(), int)
assert_type(counters.add.options(partial=True).call(1).get(), ValueMesh[int | Exception])
assert_type(counters.add.options(reduce="sum").call(1).get(), int)
assert_type(counters.name.options(reduce="all_equal", deadline=5).call().get(), str)
assert_type(counters.name.options(reduce="count").call().get(), int)
assert_type(counters.floats.options(reduce="concat").call(1).get(), list[list[float]])
assert_type(counters.floats.options(reduce="max").options(deadline=5).call(1), Future[list[float]])

# Ports: callers do not see that of the method
assert_type(counters.answers.call_one(1).get(), str)
assert_type(counters.answers_later.call().get().values(), list[int])
port, receiver = Channel[int].open()
assert_type(port, Port[int])
assert_type(receiver, PortReceiver[int])
assert_type(receiver.recv().get(), int)
assert_type(receiver.ranked().recv().get(), tuple[int, int])
ranked_port, ranked = Channel[str].open_ranked(once=True)
assert_type(ranked.recv().get(), tuple[int, str])
send(counters.add, (1,), {}, port)
send(counters.add, (1,), {}, selection="choose")

# Methods without decorator
assert_type(as_endpoint(counters.plain).call_one(1).get(), float)
assert_type(as_endpoint(counters.plain_async).call().get(), ValueMesh[str])
assert_type(as_endpoint(counters.plain_port, explicit_response_port=True).call_one("x").get(), int)

# Meshes of actors, values
part = counters.slice(gpus=0)
assert_type(part, Counter)
assert_type(counters.sizes, dict[str, int])
counters.stop("enough").get()
values = counters.add.call(1).get()
for where, value in values:
    assert_type(where, Point)
    assert_type(value, int)
assert_type(values.item(gpus=0), int)
assert_type(values.slice(gpus=slice(0, 1)).values(), list[int])


# Handing endpoints on
def ask(ep: Endpoint[[str], int]) -> int:
    return ep.call_one("x").get()


class Lengths(Actor):
    @endpoint
    def length(self, text: str) -> int:
        return len(text)


ask(this_proc().spawn("lengths", Lengths).length)
total = Accumulator(counters.add, 0.0, operator.add).accumulate(1)
assert_type(total, Future[float])


async def awaits() -> int:
    with deadline(5):
        mesh = await counters.add.call(1)
        assert_type(mesh, ValueMesh[int])
        for future in counters.name.stream():
            assert_type(await future, str)
    async with procs:
        return await counters.add.call_one(1)


@returns_future
async def later(x: int) -> str:
    return str(x)


assert_type(later(1), Future[str])
assert_type(later(1).get(), str)

with local_procs({"gpus": 2}) as local, patch_actor(Counter, Child):
    assert_type(local.spawn("local", Counter, 1), Counter)


@patch_actor(Counter, Child)
def patched(x: int) -> str:
    return ""


assert_type(patched(1), str)


class Ranked(Actor):
    def __init__(self) -> None:
        self.rank = current_rank().rank

    @endpoint
    def get(self) -> int:
        return self.rank


assert_type(procs.spawn("ranked", Ranked).get.call_one(), Future[int])
any_port, any_receiver = Channel.open()
any_port.send("text")
assert_type(any_receiver.recv().get(), Any)

setup_torch_elastic_env(procs, use_ipaddr=AddrType.IPv4)
ranks = procs.spawn("ranks", SPMDActor)
host, number = ranks.get_host_port.call_one(None).get()
assert_type(number, int)
assert_type(ranks.main.call(host, number, ["train.py"]).get(), ValueMesh[bool])


async def sets_up() -> None:
    await setup_torch_elastic_env_async(procs, "host", 29500)


def attaches(address: Future[str]) -> HostMesh:
    attach_to_workers(workers=[address])
    attach_to_workers(workers=service_proc_addrs(["tcp://h:1"], [new_service_proc_id()]), ca="trust_all_connections")
    assert_type(start_worker_loop_forever(address="inproc://7"), Future[None])
    return attach_to_workers(workers=[address, "tcp://h:1"], ca=Path("ca.crt"), private_key=b"", name="machines")
