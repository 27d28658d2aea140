"""Monarch's public Python API: this project and the reference system (PyTorch Monarch) run these same lines."""

import importlib.util
import os
import time

import monarch.actor
from harness import PLACEMENTS, WrongAnswer, pin_process, print_lines, print_times, time_cold_read
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError  # where the reference has it
from monarch.actor import Actor, current_rank, endpoint, this_host
from mortal import CRASHED, KILLED, LEFT, Mortal
from systems.base import ERROR_TEXT, PAYLOAD, SEND_CHUNK, BaseSystem, Victims, look

IS_REFERENCE = importlib.util.find_spec("monarch._core") is None
ENDS = {KILLED: "Killed(sig=9)", CRASHED: "Segmentation fault(sig=11)", LEFT: "non-zero code 7"}


class Worker(Actor):
    def __init__(self):
        self.rank = current_rank().rank
        self.received = 0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def pin(self, cpus) -> None:
        pin_process(cpus)

    @endpoint
    def add(self, a, b):
        return a + b

    @endpoint
    def fail(self):
        raise ValueError(ERROR_TEXT)

    @endpoint
    def take(self, index, payload):
        return index

    @endpoint
    def receive(self, payload) -> None:
        self.received += len(payload) == len(PAYLOAD)

    @endpoint
    def count_received(self) -> int:
        return self.received

    @endpoint
    def send_for(self, seconds, sink):
        """One way to `sink` for so long; how many, and when the last was handled."""
        send, count, until = sink.receive.broadcast, 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(SEND_CHUNK):
                send(PAYLOAD)
            count += SEND_CHUNK
        sink.count_received.call_one().get()
        return count, time.monotonic()

    @endpoint
    def add_rank(self, x):
        return x + self.rank

    @endpoint
    def look(self, array, everything):
        return look(array, everything)

    @endpoint
    def buffer(self, where, size):
        import numpy

        from monarch.rdma import RDMABuffer

        self.array = monarch.empty(size, "u1") if where == "mapped" else numpy.empty(size, "u1")
        self.array[:] = numpy.arange(size) % 251
        return RDMABuffer(memoryview(self.array)), os.getpid(), self.array.ctypes.data

    @endpoint
    def buffer_tail(self):
        return self.array[-3:].tolist()

    @endpoint
    def prepare(self, size) -> None:
        """For a cold read: its array and all imports."""
        import numpy

        import monarch.rdma  # noqa: F401

        self.array = numpy.arange(size) % 251
        self.array = self.array.astype("u1")

    @endpoint
    def register(self):
        from monarch.rdma import RDMABuffer

        return RDMABuffer(memoryview(self.array))

    @endpoint
    def cold_read(self, owner):
        import numpy

        return time_cold_read(
            lambda: owner.register.call_one().get(),
            lambda buffer, array: buffer.read_into(memoryview(array)).get(),
            numpy.empty_like(self.array),
            self.array,
        )

    @endpoint
    def print_lines(self, count):
        return print_lines(count)

    @endpoint
    def print_times(self, count, gap_s) -> None:
        print_times(count, gap_s)


class AsyncWorker(Actor):
    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def pin(self, cpus) -> None:
        pin_process(cpus)

    @endpoint
    async def add(self, a, b):
        return a + b

    @endpoint
    async def take(self, index, payload):
        return index


class Victim(Actor):
    def __init__(self, path):
        self.mortal = Mortal(path)

    @endpoint
    def grow(self, size):
        return self.mortal.grow(size)

    @endpoint
    def die(self, how):
        self.mortal.die(how)

    @endpoint
    def pid(self):
        return os.getpid()


class Boss(Actor):
    @endpoint
    def spawn(self, count, path, by_policy=False):
        self.procs, victims = spawn_victims(count, path, by_policy)
        return victims

    def __supervise__(self, failure):
        return True


def spawn_victims(count, path, by_policy=False):
    procs = this_host().spawn_procs(per_host={"procs": count})
    spawner = procs.options(restart=monarch.actor.Restart(times=1000)) if by_policy else procs
    return procs, spawner.spawn("victim", Victim, path)


class MonarchVictims(Victims):
    def __init__(self, procs, actors, by_policy=False):
        self.procs, self.actors, self.by_policy = procs, actors, by_policy

    def grow(self, size):
        return list(self.actors.grow.call(size).get().values())

    def die(self, rank, how):
        future = self.actors.slice(procs=rank).die.call_one(how)

        def wait():
            try:
                future.get()
            except SupervisionError as error:
                return str(error)
            raise WrongAnswer("no error")

        return wait

    def recover(self, rank):
        if not self.by_policy:
            self.procs.respawn([rank]).get()

    def ask(self, rank):
        try:
            return self.actors.slice(procs=rank).pid.call_one().get()
        except SupervisionError:
            return None

    def end(self):
        self.procs.stop().get()


class System(BaseSystem):
    import_statement = "import monarch.actor"

    def __init__(self):
        self.actors = self.first = self.procs = None

    def start(self, procs, kind="sync"):
        self.procs = this_host().spawn_procs(per_host={"procs": procs})
        self.actors = self.procs.spawn("worker", Worker if kind == "sync" else AsyncWorker)
        self.first = self.actors.slice(procs=0)
        self.worker_pids = list(self.actors.pid.call().get().values())

    def stop(self):
        self.procs.stop().get()

    def pids(self):
        return self.worker_pids

    def place_workers(self, cpus):
        self.actors.pin.call(cpus).get()

    def caller(self):
        first = self.first
        return lambda: first.add.call_one(1, 2).get()

    def async_caller(self):
        first = self.first
        return lambda: first.add.call_one(1, 2)

    def raiser(self):
        first = self.first

        def call():
            try:
                first.fail.call_one().get()
            except Exception as error:
                return ERROR_TEXT if ERROR_TEXT in str(error) else str(error)

        return call

    def window(self, count):
        first = self.first

        def call():
            futures = [first.take.call_one(index, PAYLOAD) for index in range(count)]
            return [future.get() for future in futures]

        return call

    def gatherer(self, count):
        import asyncio

        first = self.first

        async def wait(future):
            return await future

        async def call():
            return await asyncio.gather(*[wait(first.take.call_one(index, PAYLOAD)) for index in range(count)])

        return call

    def one_way(self):
        first = self.first
        return lambda: first.receive.broadcast(PAYLOAD), lambda: first.count_received.call_one().get()

    def all_caller(self):
        actors = self.actors
        return lambda x: list(actors.add_rank.call(x).get().values())

    def swarm_caller(self, per_proc):
        if not hasattr(self.procs, "options"):
            self.missing("many actors of one mesh in a process")
        actors = self.procs.options(per_proc={"actors": per_proc}).spawn(f"swarm_{per_proc}", Worker)
        return lambda x: list(actors.add_rank.call(x).get().values())

    def fan_in(self):
        sink, senders = self.first, self.actors.slice(procs=slice(1, None))
        send = lambda seconds: list(senders.send_for.call(seconds, sink).get().values())  # noqa: E731
        return send, lambda: sink.count_received.call_one().get()

    def array_sender(self, everything):
        first = self.first
        return lambda array: first.look.call_one(array, everything).get()

    def frozen_caller(self, size, first, last):
        if not hasattr(monarch, "freeze"):
            self.missing("an argument without a copy")
        array = monarch.empty(size, "u1")
        array[0], array[-1] = first, last
        array, actors = monarch.freeze(array), self.actors
        return lambda: list(actors.look.call(array, False).get().values())

    def buffer_operation(self, where, size, writes):
        if where == "mapped" and not hasattr(monarch, "empty"):
            self.missing("memory that others map")
        try:
            importlib.import_module("monarch.rdma")
        except ImportError as error:
            self.missing(f"buffers ({error})")
        buffer, pid, address = self.first.buffer.call_one(where, size).get()
        if writes:
            return lambda source: buffer.write_from(source).get(), pid, address
        return lambda target: buffer.read_into(target).get(), pid, address

    def cold_read(self, size, placement):
        try:
            importlib.import_module("monarch.rdma")
        except ImportError as error:
            self.missing(f"buffers ({error})")
        meshes = [this_host().spawn_procs() for _ in range(2)]
        reader, owner = actors = [mesh.spawn("cold", Worker) for mesh in meshes]
        for actor, cpus in zip(actors, PLACEMENTS[placement]):
            actor.pin.call_one(cpus).get()
            actor.prepare.call_one(size).get()
        times = reader.cold_read.call_one(owner).get()
        for mesh in meshes:
            mesh.stop().get()
        return times

    def buffer_tail(self):
        return self.first.buffer_tail.call_one().get()

    def store(self, size):
        try:
            from systems.store_client import Store
        except ImportError as error:
            self.missing(f"torchstore ({error}); make test-torch installs it")
        return Store(size)

    def spawn_actors(self, count):
        width = self.procs.size()
        cells = [self.procs.slice(procs=cell) for cell in range(width)]
        actors = [cells[index % width].spawn(f"single_{index}", Worker) for index in range(count)]
        futures = [actor.add.call_one(index, 1) for index, actor in enumerate(actors)]
        return [future.get() for future in futures]

    def start_printers(self, procs):
        if not IS_REFERENCE:  # ours shows what workers print
            return self.start(procs)
        import asyncio

        from monarch.config import configure

        configure(enable_log_forwarding=True)
        self.start(procs)
        asyncio.run(self.procs.logging_option(stream_to_client=True, aggregate_window_sec=None))

    def print_lines(self, count):
        return list(self.actors.print_lines.call(count).get().values())

    def print_times(self, count, gap_s):
        self.first.print_times.call_one(count, gap_s).get()

    def spawn_round(self, procs):
        mesh = this_host().spawn_procs(per_host={"procs": procs})
        actors = mesh.spawn("first", Worker)
        answers = list(actors.add_rank.call(1).get().values())
        return answers, lambda: mesh.stop().get()

    def victims(self, count, path):
        if IS_REFERENCE:  # its default ends the script
            monarch.actor.unhandled_fault_hook = lambda failure: None
        return MonarchVictims(*spawn_victims(count, path))

    def nested_victim(self, path):
        if IS_REFERENCE:
            self.missing("not tried")
        return self.spawn_by_boss(1, path)

    def death_texts(self, pid, how):
        return () if IS_REFERENCE else (f"pid {pid}", ENDS[how])

    def restartable(self, count, path, by_policy):
        if IS_REFERENCE:
            self.missing("recovery in place")
        return MonarchVictims(*spawn_victims(count, path, by_policy), by_policy)

    def owned(self, count, path):
        if IS_REFERENCE:
            self.missing("recovery in place")
        return self.spawn_by_boss(count, path, by_policy=True)

    @staticmethod
    def spawn_by_boss(count, path, by_policy=False):
        procs = this_host().spawn_procs()
        victims = procs.spawn("boss", Boss).spawn.call_one(count, path, by_policy).get()
        return MonarchVictims(procs, victims, by_policy)
