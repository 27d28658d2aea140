"""torchstore over Monarch's public API: a client of its own process, and the time that it takes there.

The dictionary has the tensors of a small transformer, and in each of them the number of the turn at both ends, so that
a stale or shared copy is noticed. Needs torch, which the other rows do without.
"""

import asyncio
import importlib.util
import inspect
import os
import time

import monarch.actor
from monarch.actor import Actor, endpoint, this_host

# As torchstore does, which says so on stdout.
os.environ.setdefault("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", "910737418240")
# As torchrun does. Threads of several processes that copy on few cores spin, each until the other has been let run.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def awaited(function):
    """An endpoint, of a function that is made one to be awaited."""
    if inspect.iscoroutinefunction(function):
        return endpoint(function)

    async def call(*args):
        return function(*args)

    return endpoint(call)


IS_REFERENCE = importlib.util.find_spec("monarch._core") is None
if IS_REFERENCE:  # it takes no actor of both kinds from 0.2.0 on, which torchstore's controller is
    monarch.actor.endpoint = awaited
import torch  # noqa: E402
import torchstore  # noqa: E402

monarch.actor.endpoint = endpoint


class Controller(torchstore.api.Controller):
    """Whoever unpickles it imports torchstore from here."""


if IS_REFERENCE:
    torchstore.api.Controller = Controller

LAYERS = 8
KEY = "weights"


def state_dict(size):
    """64 tensors of about `size` bytes together: in each layer four matrices, two twice as large, two vectors."""
    width = size // LAYERS // 8 // 4 // 1024
    state = {}
    for layer in range(LAYERS):
        for name in ("query", "key", "value", "out"):
            state[f"layers.{layer}.{name}"] = torch.zeros(width, 1024)
        for name in ("up", "down"):
            state[f"layers.{layer}.{name}"] = torch.zeros(2 * width, 1024)
        for name in ("norm", "scale"):
            state[f"layers.{layer}.{name}"] = torch.zeros(1024)
    return state


def mark(state, turn):
    for tensor in state.values():
        tensor.view(-1)[0] = tensor.view(-1)[-1] = turn


def marks(state):
    return {float(tensor.view(-1)[at]) for tensor in state.values() for at in (0, -1)}


class StoreClient(Actor):
    """What is timed is the call of torchstore only; every answer says how long it took, in ns, and what has come."""

    def __init__(self, size):
        self.state, self.target = state_dict(size), state_dict(size)

    @endpoint
    async def put(self, turn):
        mark(self.state, turn)
        start = time.perf_counter_ns()
        await torchstore.put_state_dict(self.state, KEY)
        return time.perf_counter_ns() - start, marks(await torchstore.get_state_dict(KEY, self.target))

    @endpoint
    async def get(self, turn):
        start = time.perf_counter_ns()
        got = await torchstore.get_state_dict(KEY)
        return time.perf_counter_ns() - start, marks(got)

    @endpoint
    async def get_into(self, turn):
        mark(self.target, -1)
        start = time.perf_counter_ns()
        await torchstore.get_state_dict(KEY, self.target)
        return time.perf_counter_ns() - start, marks(self.target)

    @endpoint
    async def clone(self, turn):
        """The least that a store has to do for it, in this process: memory that was not there, and a copy to it."""
        start = time.perf_counter_ns()
        got = {name: tensor.clone() for name, tensor in self.state.items()}
        return time.perf_counter_ns() - start, marks(got)

    @endpoint
    async def bytes(self):
        return sum(tensor.nbytes for tensor in self.state.values())

    @endpoint
    async def way(self, by_messages):
        """How tensors go from now on: as torchstore chooses here, or by messages; -> the name of its class for it."""
        os.environ["TORCHSTORE_RDMA_ENABLED"] = str(int(not by_messages))
        return torchstore.transport.Pipe(None).create_transport_buffer().__class__.__name__


class Store:
    """One volume and one client, each in its process."""

    def __init__(self, size):
        self.procs = [this_host().spawn_procs(per_host={"procs": 1}) for _ in range(2)]
        asyncio.run(torchstore.initialize(mesh=self.procs[0]))
        self.client = self.procs[1].spawn("client", StoreClient, size)
        self.bytes = self.client.bytes.call_one().get()

    def choose(self, by_messages):
        """As StoreClient.way()."""
        return self.client.way.call_one(by_messages).get()

    def operation(self, name):
        """-> function(turn): how long it took in ns, and the marks that were found after it."""
        call = getattr(self.client, name).call_one
        return lambda turn: call(turn).get()

    def end(self):
        asyncio.run(torchstore.shutdown())
        for procs in self.procs:
            procs.stop().get()
