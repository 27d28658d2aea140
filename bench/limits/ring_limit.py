"""The floor under a Python actor call, as a system of its own: pickled requests over a shared-memory ring.

It does the least that a call must do (encode, publish, decode, look up a method, call it, answer) and nothing else: no
supervision, no context, no order among senders. New processes come from a bare fork server. W4 and W6 have their limits
in star.cc and copy.cc.
"""

import os
import pickle
import socket
import sys

from harness import BENCH_DIR, pin_process
from systems.base import ERROR_TEXT, PAYLOAD, BaseSystem

OUT, BACK = 0, 1
SPIN_SECONDS = 50e-6


class Worker:
    def __init__(self):
        self.received = 0
        self.singles = {}

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

    def spawn(self, name):
        self.singles[name] = Worker()

    def add_in(self, name, a, b):
        return self.singles[name].add(a, b)


class AsyncWorker:
    def __init__(self):
        self.worker = Worker()

    async def pin(self, cpus):
        pin_process(cpus)

    async def add(self, a, b):
        return a + b

    async def take(self, index, payload):
        return index


def finish(coroutine):
    """Runs a coroutine that does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value


def describe(error):
    """The shortest text that still says where: no look at source lines."""
    places, step = [], error.__traceback__
    while step:
        places.append(f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}")
        step = step.tb_next
    return f"{type(error).__name__}: {error} at " + ", ".join(places)


def serve(ring, worker, bell):
    """Requests are (method, arguments, wants an answer); None ends the loop. `bell` is rung after each answer."""
    loads, dumps, recv, send = pickle.loads, pickle.dumps, ring.recv, ring.send
    asynchronous = isinstance(worker, AsyncWorker)
    while (request := loads(recv(OUT, SPIN_SECONDS))) is not None:
        method, arguments, wants_answer = request
        try:
            answer = getattr(worker, method)(*arguments)
            if asynchronous:
                answer = finish(answer)
        except Exception as error:
            answer = RuntimeError(describe(error))
        if wants_answer:
            send(BACK, dumps(answer, 5))
            if bell is not None:
                os.eventfd_write(bell, 1)


class System(BaseSystem):
    server = None

    def start(self, procs, kind="sync"):
        sys.path.append(os.path.join(BENCH_DIR, ".build"))
        import _ring

        self.ring = _ring
        _ring.create()
        self.bell = os.eventfd(0) if kind == "async" else None
        self.worker_pid = os.fork()
        if self.worker_pid == 0:
            serve(_ring, Worker() if kind == "sync" else AsyncWorker(), self.bell)
            os._exit(0)

    def stop(self):
        self.ring.send(OUT, pickle.dumps(None))
        os.waitpid(self.worker_pid, 0)

    def pids(self):
        return [self.worker_pid]

    def ask(self, method, *arguments):
        self.ring.send(OUT, pickle.dumps((method, arguments, True), 5))
        answer = pickle.loads(self.ring.recv(BACK, SPIN_SECONDS))
        if self.bell is not None:
            os.eventfd_read(self.bell)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def place_workers(self, cpus):
        self.ask("pin", cpus)

    def caller(self):
        loads, dumps, recv, send = pickle.loads, pickle.dumps, self.ring.recv, self.ring.send

        def call():
            send(OUT, dumps(("add", (1, 2), True), 5))
            return loads(recv(BACK, SPIN_SECONDS))

        return call

    def raiser(self):
        def call():
            try:
                self.ask("fail")
            except RuntimeError as error:
                return ERROR_TEXT if ERROR_TEXT in str(error) else str(error)

        return call

    def window(self, count):
        loads, dumps, recv, send = pickle.loads, pickle.dumps, self.ring.recv, self.ring.send

        def call():
            for index in range(count):
                send(OUT, dumps(("take", (index, PAYLOAD), True), 5))
            return [loads(recv(BACK, SPIN_SECONDS)) for _ in range(count)]

        return call

    def one_way(self):
        dumps, send = pickle.dumps, self.ring.send
        return lambda: send(OUT, dumps(("receive", (PAYLOAD,), False), 5)), lambda: self.ask("count_received")

    def spawn_actors(self, count):
        dumps, send = pickle.dumps, self.ring.send
        for name in range(count):
            send(OUT, dumps(("spawn", (name,), False), 5))
        for name in range(count):
            send(OUT, dumps(("add_in", (name, name, 1), True), 5))
        return [pickle.loads(self.ring.recv(BACK, SPIN_SECONDS)) for _ in range(count)]

    # The asyncio caller: answers come in order, a reader callback on the bell completes the futures. Before it sleeps
    # the selector polls the ring for a moment.

    def attach_loop(self):
        import asyncio
        import collections

        loop = asyncio.get_running_loop()
        pending, ring, bell = collections.deque(), self.ring, self.bell

        def complete():
            for _ in range(os.eventfd_read(bell)):
                pending.popleft().set_result(pickle.loads(ring.recv(BACK, SPIN_SECONDS)))

        loop.add_reader(bell, complete)
        poll_before_sleep(loop)

        def call(method, *arguments):
            future = loop.create_future()
            pending.append(future)
            ring.send(OUT, pickle.dumps((method, arguments, True), 5))
            return future

        return call

    def async_caller(self):
        call = self.attach_loop()
        return lambda: call("add", 1, 2)

    def gatherer(self, count):
        import asyncio

        call = self.attach_loop()
        return lambda: asyncio.gather(*[call("take", index, PAYLOAD) for index in range(count)])

    # Processes: a bare fork server, started by exec at the first spawn.

    def spawn_round(self, procs):
        if self.server is None:
            self.server, theirs = socket.socketpair()
            program = os.path.join(BENCH_DIR, "limits", "fork_server.py")
            os.set_inheritable(theirs.fileno(), True)
            os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", program, str(theirs.fileno())], os.environ)
            theirs.close()
        links = []
        for rank in range(procs):
            ours, theirs = socket.socketpair()
            socket.send_fds(self.server, [b"f"], [theirs.fileno()])
            theirs.close()
            ours.send(pickle.dumps((rank, 1), 5))
            links.append(ours)
        answers = [pickle.loads(link.recv(256)) for link in links]

        def end():
            for link in links:
                link.close()

        return answers, end


def poll_before_sleep(loop):
    """Makes the loop's selector poll for SPIN_SECONDS before it sleeps."""
    import time

    selector = loop._selector
    select, clock = selector.select, time.perf_counter

    def polling_select(timeout=None):
        if timeout is None or timeout > 0:
            end = clock() + SPIN_SECONDS
            while clock() < end:
                if events := select(0):
                    return events
        return select(timeout)

    selector.select = polling_select
