"""Ray: actors, object references, default settings (no dashboard: it is not part of the plain wheel)."""

import functools
import logging
import os
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy  # noqa: E402
import ray  # noqa: E402

from harness import PLACEMENTS, WrongAnswer, pin_process, time_cold_read  # noqa: E402
from mortal import Mortal  # noqa: E402
from systems.base import ERROR_TEXT, PAYLOAD, SEND_CHUNK, BaseSystem, Victims, look  # noqa: E402


@ray.remote
class Worker:
    def __init__(self, rank=0):
        self.rank = rank
        self.received = 0

    def pid(self):
        return os.getpid()

    def pin(self, cpus):
        pin_process(cpus)

    def add(self, a, b):
        return a + b

    def fail(self):
        raise ValueError(ERROR_TEXT)

    def take(self, index, payload):
        return index

    def receive(self, payload):
        self.received += len(payload) == len(PAYLOAD)

    def count_received(self):
        return self.received

    def send_for(self, seconds, sink):
        send, count, until = sink.receive.remote, 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(SEND_CHUNK):
                send(PAYLOAD)
            count += SEND_CHUNK
        ray.get(sink.count_received.remote())
        return count, time.monotonic()

    def add_rank(self, x):
        return x + self.rank

    def look(self, array, everything):
        return look(array, everything)

    def buffer(self, size):
        self.array = numpy.empty(size, "u1")
        self.array[:] = numpy.arange(size) % 251
        return os.getpid(), self.array.ctypes.data

    def put(self):
        return [ray.put(self.array)]

    def give(self):
        return self.array

    def fill(self, array):
        self.array[:] = array

    def cold_read(self, owner):
        return time_cold_read(
            lambda: ray.get(owner.put.remote()),
            lambda put, array: numpy.copyto(array, ray.get(put[0])),
            numpy.empty_like(self.array),
            self.array,
        )

    def buffer_tail(self):
        return self.array[-3:].tolist()


@ray.remote
class AsyncWorker:
    def __init__(self, rank=0):
        self.rank = rank

    async def pid(self):
        return os.getpid()

    async def pin(self, cpus):
        pin_process(cpus)

    async def add(self, a, b):
        return a + b

    async def take(self, index, payload):
        return index


@ray.remote
class Victim:
    def __init__(self, path):
        self.mortal = Mortal(path)

    def grow(self, size):
        return self.mortal.grow(size)

    def die(self, how):
        self.mortal.die(how)

    def pid(self):
        return os.getpid()


class RayVictims(Victims):
    def __init__(self, actors):
        self.actors = actors

    def grow(self, size):
        return ray.get([actor.grow.remote(size) for actor in self.actors])

    def die(self, rank, how):
        answer = self.actors[rank].die.remote(how)

        def wait():
            try:
                ray.get(answer)
            except ray.exceptions.RayActorError as error:
                return str(error)
            raise WrongAnswer("no error")

        return wait

    def ask(self, rank):
        try:
            return ray.get(self.actors[rank].pid.remote())
        except ray.exceptions.RayActorError:
            return None

    def end(self):
        for actor in self.actors:
            ray.kill(actor)


LAYERS, KINDS = 8, {"query": 1, "key": 1, "value": 1, "out": 1, "up": 2, "down": 2}


def state_dict(size):
    """As store_client.state_dict(), of NumPy's arrays, which Ray has no copy of its own for where they are read."""
    width = size // LAYERS // 8 // 4 // 1024
    state = {
        f"layers.{i}.{name}": numpy.zeros((w * width, 1024), "f4") for i in range(LAYERS) for name, w in KINDS.items()
    }
    return state | {f"layers.{i}.{name}": numpy.zeros(1024, "f4") for i in range(LAYERS) for name in ("norm", "scale")}


def marks(state):
    return {float(array.reshape(-1)[at]) for array in state.values() for at in (0, -1)}


@ray.remote
class Volume:
    """Has the reference of what was put, in its process."""

    def keep(self, refs):
        self.refs = refs

    def kept(self):
        return self.refs


@ray.remote
class StoreClient:
    """As store_client.StoreClient, over Ray's object store."""

    def __init__(self, size, volume):
        self.state, self.target, self.volume = state_dict(size), state_dict(size), volume

    def bytes(self):
        return sum(array.nbytes for array in self.state.values())

    def read(self):
        return ray.get(ray.get(self.volume.kept.remote())[0])

    def put(self, turn):
        for array in self.state.values():
            array.reshape(-1)[0] = array.reshape(-1)[-1] = turn
        start = time.perf_counter_ns()
        ray.get(self.volume.keep.remote([ray.put(self.state)]))
        return time.perf_counter_ns() - start, marks(self.read())

    def get(self, turn):
        start = time.perf_counter_ns()
        got = {name: array.copy() for name, array in self.read().items()}
        return time.perf_counter_ns() - start, marks(got)

    def get_into(self, turn):
        for array in self.target.values():
            array.reshape(-1)[0] = array.reshape(-1)[-1] = -1
        start = time.perf_counter_ns()
        for name, array in self.read().items():
            numpy.copyto(self.target[name], array)
        return time.perf_counter_ns() - start, marks(self.target)


class Store:
    """As store_client.Store."""

    def __init__(self, size):
        ensure_ray()
        self.volume = Volume.remote()
        self.client = StoreClient.remote(size, self.volume)
        self.bytes = ray.get(self.client.bytes.remote())

    def choose(self, by_messages):
        return "ray.put"

    def operation(self, name):
        call = getattr(self.client, name).remote
        return lambda turn: ray.get(call(turn))

    def end(self):
        for actor in (self.client, self.volume):
            ray.kill(actor)


def ensure_ray():
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)


class System(BaseSystem):
    import_statement = "import ray"

    def start(self, procs, kind="sync"):
        ensure_ray()
        made = Worker if kind == "sync" else AsyncWorker
        self.actors = [made.remote(rank) for rank in range(procs)]
        self.first = self.actors[0]
        self.worker_pids = ray.get([actor.pid.remote() for actor in self.actors])

    def stop(self):
        for actor in self.actors:
            ray.kill(actor)

    def pids(self):
        return self.worker_pids

    def place_workers(self, cpus):
        ray.get([actor.pin.remote(cpus) for actor in self.actors])

    def caller(self):
        add, get = self.first.add, ray.get
        return lambda: get(add.remote(1, 2))

    def async_caller(self):
        add = self.first.add
        return lambda: add.remote(1, 2)

    def raiser(self):
        fail, get = self.first.fail, ray.get

        def call():
            try:
                get(fail.remote())
            except Exception as error:
                return ERROR_TEXT if ERROR_TEXT in str(error) else str(error)

        return call

    def window(self, count):
        take, get = self.first.take, ray.get
        return lambda: get([take.remote(index, PAYLOAD) for index in range(count)])

    def gatherer(self, count):
        import asyncio

        take = self.first.take

        async def call():
            return await asyncio.gather(*[take.remote(index, PAYLOAD) for index in range(count)])

        return call

    def one_way(self):
        receive, count = self.first.receive, self.first.count_received
        return lambda: receive.remote(PAYLOAD), lambda: ray.get(count.remote())

    def all_caller(self):
        actors, get = self.actors, ray.get
        return lambda x: get([actor.add_rank.remote(x) for actor in actors])

    def fan_in(self):
        sink, senders = self.first, self.actors[1:]
        send = lambda seconds: ray.get([sender.send_for.remote(seconds, sink) for sender in senders])  # noqa: E731
        return send, lambda: ray.get(sink.count_received.remote())

    def array_sender(self, everything):
        look_remote, get = self.first.look, ray.get
        return lambda array: get(look_remote.remote(array, everything))

    def buffer_operation(self, where, size, writes):
        """What the store holds nobody changes. So "mapped" is an array that its owner has put there, once, and
        "ordinary" one that it goes on changing, which has to be put there by each operation."""
        first, get = self.first, ray.get
        pid, address = get(first.buffer.remote(size))
        array_of = functools.partial(numpy.frombuffer, dtype="u1")
        if writes:
            return lambda source: get(first.fill.remote(array_of(source))), pid, address
        if where == "mapped":
            (put,) = get(first.put.remote())
            return lambda target: numpy.copyto(array_of(target), get(put)), pid, address
        return lambda target: numpy.copyto(array_of(target), get(first.give.remote())), pid, address

    def cold_read(self, size, placement):
        ensure_ray()
        reader, owner = actors = [Worker.remote() for _ in range(2)]
        for actor, cpus in zip(actors, PLACEMENTS[placement]):
            ray.get([actor.pin.remote(cpus), actor.buffer.remote(size)])
        times = ray.get(reader.cold_read.remote(owner))
        for actor in actors:
            ray.kill(actor)
        return times

    def store(self, size):
        return Store(size)

    def buffer_tail(self):
        return ray.get(self.first.buffer_tail.remote())

    def spawn_actors(self, count):
        """Ray has no actors that share a process: each one is a process of its own."""
        actors = [Worker.remote() for _ in range(count)]
        answers = ray.get([actor.add.remote(index, 1) for index, actor in enumerate(actors)])
        for actor in actors:
            ray.kill(actor)
        return answers

    def spawn_round(self, procs):
        ensure_ray()
        actors = [Worker.remote(rank) for rank in range(procs)]
        answers = ray.get([actor.add_rank.remote(1) for actor in actors])

        def end():
            for actor in actors:
                ray.kill(actor)

        return answers, end

    def victims(self, count, path):
        ensure_ray()
        return RayVictims([Victim.remote(path) for _ in range(count)])

    def restartable(self, count, path, by_policy):
        if not by_policy:
            self.missing("recovery by hand")
        ensure_ray()
        return RayVictims([Victim.options(max_restarts=-1).remote(path) for _ in range(count)])
