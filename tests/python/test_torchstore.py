"""torchstore, a store of tensors, as it is installed (`make test-torch`; skipped where it is not there).

Its volumes live in two processes, and who puts and gets in two others and in this one. Every tensor goes through a
buffer of ours that it makes for that, and drops.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch installs it")
with pytest.MonkeyPatch.context() as patch:
    # Without it torchstore sets it, to more, and says so on a stdout that it keeps.
    patch.setenv("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", str(10 << 30))
    ts = pytest.importorskip("torchstore", reason="needs torchstore and pygtrie: make test-torch installs both")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torchstore.transport import TensorSlice, buffers  # noqa: E402

from monarch.actor import Actor, current_rank, endpoint, this_host  # noqa: E402
from monarch.rdma import BufferDropped, RDMABuffer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:is_rdma_available:DeprecationWarning")
LIMIT_S = 110  # torch alone takes seconds to import
GRID = torch.arange(64.0).reshape(8, 8)


def state_of(seed: int) -> dict[str, Any]:
    """Of a model, as a trainer keeps it: dictionaries of dictionaries, of tensors and of what is none."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
    weights = dict(model.state_dict())
    moments = {name: torch.rand_like(weight, dtype=torch.bfloat16) for name, weight in weights.items()}
    return {"model": weights, "moments": moments, "step": seed, "betas": (0.9, 0.95)}


def assert_same(one: Any, other: Any) -> None:
    """Dictionaries, tensors and what has ``==``."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    else:
        assert one == other


class Trainer(Actor):
    """A rank of those that put and get."""

    def __init__(self, rendezvous: str):
        rank = current_rank().rank
        os.environ["LOCAL_RANK"] = str(rank)  # ts.LocalRankStrategy: the volume of a client
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{rendezvous}")
        self.ranks = init_device_mesh("cpu", (2,))

    @endpoint
    async def put_state(self, key: str, seed: int) -> None:
        await ts.put_state_dict(state_of(seed), key)

    @endpoint
    async def has_state(self, key: str, seed: int) -> None:
        assert_same(await ts.get_state_dict(key), state_of(seed))
        mine = state_of(seed + 1)
        await ts.get_state_dict(key, mine, strict=False)  # into the tensors that it has
        assert_same(mine["model"], state_of(seed)["model"])

    @endpoint
    async def put_shard(self, key: str, dim: int) -> None:
        await ts.put(key, distribute_tensor(GRID, self.ranks, [Shard(dim)]))

    @endpoint
    async def get_shard(self, key: str, dim: int, by_buffers: bool) -> Any:
        target = distribute_tensor(torch.zeros(8, 8), self.ranks, [Shard(dim)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCHSTORE_RDMA_ENABLED", str(int(by_buffers)))
            return (await ts.get(key, target)).to_local()

    @endpoint
    def end(self) -> None:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def store():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")  # this process is a client too
        procs = this_host().spawn_procs(per_host={"gpus": 2})
        asyncio.run(ts.initialize(num_storage_volumes=2, strategy=ts.LocalRankStrategy(), mesh=procs))
        yield
        asyncio.run(ts.shutdown())
        procs.stop().get()


@pytest.fixture(scope="module")
def trainers(store, tmp_path_factory):
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    spawned = procs.spawn("trainers", Trainer, str(tmp_path_factory.mktemp("store") / "rendezvous"))
    yield spawned
    spawned.end.call().get(timeout=LIMIT_S)
    procs.stop().get()


@pytest.fixture
def made(monkeypatch):
    """The buffers that torchstore makes in this process."""
    seen: list[RDMABuffer] = []

    def make(data):
        seen.append(RDMABuffer(data))
        return seen[-1]

    monkeypatch.setattr(buffers, "RDMABuffer", make)
    return seen


TENSORS = {
    "float": lambda: torch.arange(12.0).reshape(3, 4),
    "bfloat16": lambda: torch.arange(1000, dtype=torch.bfloat16),
    "one": lambda: torch.tensor(7.5),
    "bool": lambda: torch.arange(100) % 3 == 0,
    "parameter": lambda: torch.nn.Parameter(torch.ones(5, 5)),
    "large": lambda: torch.arange(1 << 20),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_comes_back_as_it_was_put_and_no_buffer_is_left(store, made, kind):
    async def put_and_get():
        tensor = TENSORS[kind]()
        expected = tensor.detach().clone()
        await ts.put(kind, tensor)
        tensor.detach().zero_()  # what is put is a copy
        got = await ts.get(kind)
        assert got.dtype == expected.dtype and torch.equal(got, expected)
        target = torch.zeros_like(expected)
        assert await ts.get(kind, target) is target and torch.equal(target, expected)
        assert [buffer.size() for buffer in made] == 3 * [expected.nbytes]
        for buffer in made:
            with pytest.raises(BufferDropped):
                await buffer.read()

    asyncio.run(put_and_get())


def test_keys_objects_and_what_is_not_there(store):
    async def use():
        await ts.put("a.tensor", torch.ones(3))
        await ts.put("a.object", {"epoch": 3})
        assert await ts.get("a.object") == {"epoch": 3}
        assert sorted(await ts.keys("a")) == ["a.object", "a.tensor"]
        await ts.put("a.tensor", torch.zeros(3))
        assert torch.equal(await ts.get("a.tensor"), torch.zeros(3))
        await ts.delete("a.tensor")
        assert not await ts.exists("a.tensor") and await ts.exists("a.object")
        with pytest.raises(KeyError, match="a.tensor"):
            await ts.get("a.tensor")

    asyncio.run(use())


def test_a_part_of_a_tensor(store):
    async def use():
        await ts.put("grid", GRID)
        part = TensorSlice((2, 3), (), (8, 8), (4, 5), ())
        assert torch.equal(await ts.get("grid", tensor_slice_spec=part), GRID[2:6, 3:8])

    asyncio.run(use())


def test_a_state_dict_of_one_process_is_that_of_others(trainers):
    trainers.slice(gpus=1).put_state.call_one("checkpoint", 3).get(timeout=LIMIT_S)
    trainers.has_state.call("checkpoint", 3).get(timeout=LIMIT_S)
    assert_same(asyncio.run(ts.get_state_dict("checkpoint")), state_of(3))


def test_shards_of_two_volumes_are_one_tensor_and_are_cut_anew(trainers):
    trainers.put_shard.call("rows", 0).get(timeout=LIMIT_S)
    assert torch.equal(asyncio.run(ts.get("rows")), GRID)
    # Columns cut through these shards. Before it makes a buffer torchstore 0.1.2 asks the volume how large a part is,
    # which knows whole shards only: KeyError, whatever the buffers are. By messages it does not ask.
    for dim, by_buffers in ((0, True), (1, False)):
        shards = trainers.get_shard.call("rows", dim, by_buffers).get(timeout=LIMIT_S)
        assert torch.equal(torch.cat(list(shards.values()), dim), GRID)
