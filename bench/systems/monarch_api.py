"""Monarch's public Python API: this project and the reference system (PyTorch Monarch) run these same lines."""

import importlib.util
import os
import time

from harness import pin_process, print_lines, print_times
from monarch.actor import Actor, current_rank, endpoint, this_host
from systems.base import ERROR_TEXT, PAYLOAD, SEND_CHUNK, BaseSystem, look

IS_REFERENCE = importlib.util.find_spec("monarch._rust_bindings") is not None


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
