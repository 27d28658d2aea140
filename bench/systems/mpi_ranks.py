"""mpi4py: rank 0 is the controller, every other rank serves. Started by mpirun with one rank more than workers.

Where a rank dies the whole job does: for that the script is no rank, and starts jobs (workloads/w10_job.py).
"""

import os
import subprocess
import sys

import mpi4py
import numpy

from harness import BENCH_DIR, MPIRUN, pin_process
from mortal import CRASHED, KILLED, LEFT
from systems.base import ERROR_TEXT, PAYLOAD, BaseSystem, Victims, look

mpi4py.rc.initialize = "OMPI_COMM_WORLD_SIZE" in os.environ
from mpi4py import MPI  # noqa: E402

COMM = MPI.COMM_WORLD
NO_BYTES = {"mapped": (0,), "ordinary": (None,)}
ENDS = {KILLED: "signal 9", CRASHED: "signal 11", LEFT: "Exit code:    7"}


class Worker:
    """What a rank serves. Requests are (method, arguments, wants an answer), pickled by mpi4py."""

    def __init__(self):
        self.received = 0
        self.array = numpy.empty(0, "u1")
        self.window = None

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

    def look(self, size, everything):
        """The array itself follows as a buffer; it is received where the last one was."""
        if len(self.array) != size:
            self.array = numpy.empty(size, "u1")
        COMM.Recv(self.array, source=0)
        return look(self.array, everything)

    def buffer(self, where, size):
        self.free_buffer()
        if where == "mapped":
            self.window = MPI.Win.Allocate(size, comm=COMM)
            self.bytes = numpy.frombuffer(self.window.tomemory(), "u1")
        else:
            self.bytes = numpy.empty(size, "u1")
            self.window = MPI.Win.Create(self.bytes, comm=COMM)
        self.bytes[:] = numpy.arange(size) % 251
        COMM.Barrier()
        return os.getpid(), self.bytes.ctypes.data

    def buffer_tail(self):
        return self.bytes[-3:].tolist()

    def free_buffer(self):
        if self.window is not None:
            self.window.Free()
            self.window = None

    def collective(self):
        """Serves calls to all ranks until a None: a broadcast and a gather each."""
        while (x := COMM.bcast(None, root=0)) is not None:
            COMM.gather(x + COMM.rank - 1, root=0)


def ask(rank, method, *arguments):
    COMM.send((method, arguments, True), dest=rank)
    answer = COMM.recv(source=rank)
    if isinstance(answer, Exception):
        raise answer
    return answer


class Job(Victims):
    """One rank dies, while rank 0 waits for its answer. There is no error at rank 0: mpirun ends it too."""

    def __init__(self, path):
        self.path = path

    def grow(self, size):
        program = [sys.executable, os.path.join(BENCH_DIR, "workloads", "w10_job.py"), self.path, str(size)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*MPIRUN, "-np", "2", *program], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        return [int(self.process.stdout.readline())]

    def die(self, rank, how):
        self.process.stdin.write(how + "\n")
        self.process.stdin.flush()

        def wait():
            """Until mpirun has ended, and every rank with it; what it says."""
            self.process.wait()
            return self.process.stderr.read()

        return wait

    def end(self):
        self.process.communicate()


class System(BaseSystem):
    in_collective = False
    shown = None

    def is_worker(self):
        return COMM.rank > 0

    def serve(self):
        worker = Worker()
        while (request := COMM.recv(source=0)) is not None:
            method, arguments, wants_answer = request
            try:
                answer = getattr(worker, method)(*arguments)
            except Exception as error:
                answer = error
            if wants_answer:
                COMM.send(answer, dest=0)

    def start(self, procs, kind="sync"):
        if kind != "sync":
            self.missing("async calls")
        if COMM.size != procs + 1:
            self.missing(f"{procs} workers under {COMM.size} ranks")
        self.ranks = range(1, procs + 1)
        self.worker_pids = [ask(rank, "pid") for rank in self.ranks]

    def stop(self):
        if self.in_collective:
            COMM.bcast(None, root=0)
            self.in_collective = False
        self.free_window()
        for rank in self.ranks:
            COMM.send(None, dest=rank)

    def pids(self):
        return self.worker_pids

    def place_workers(self, cpus):
        for rank in self.ranks:
            ask(rank, "pin", cpus)

    def caller(self):
        return lambda: ask(1, "add", 1, 2)

    def raiser(self):
        def call():
            try:
                ask(1, "fail")
            except ValueError as error:
                return str(error)

        return call

    def window(self, count):
        send, receive = COMM.send, COMM.recv

        def call():
            for index in range(count):
                send(("take", (index, PAYLOAD), True), 1)
            return [receive(source=1) for _ in range(count)]

        return call

    def one_way(self):
        send = COMM.send
        return lambda: send(("receive", (PAYLOAD,), False), 1), lambda: ask(1, "count_received")

    def all_caller(self):
        for rank in self.ranks:
            COMM.send(("collective", (), False), dest=rank)
        self.in_collective = True

        def call(x):
            COMM.bcast(x, root=0)
            return COMM.gather(None, root=0)[1:]

        return call

    def array_sender(self, everything):
        def call(array):
            COMM.send(("look", (array.size, everything), True), dest=1)
            COMM.Send(array, dest=1)
            return COMM.recv(source=1)

        return call

    def buffer_operation(self, where, size, writes):
        """All ranks make and end a window together. Only rank 1 has bytes in it; the lock of rank 0 lasts."""
        self.free_window()
        COMM.send(("buffer", (where, size), True), dest=1)
        self.shown = window = (MPI.Win.Allocate if where == "mapped" else MPI.Win.Create)(*NO_BYTES[where], comm=COMM)
        COMM.Barrier()
        pid, address = COMM.recv(source=1)
        window.Lock(1)
        move, flush = (window.Put if writes else window.Get), window.Flush

        def operate(memory):
            move(memory, 1)
            flush(1)

        return operate, pid, address

    def buffer_tail(self):
        return ask(1, "buffer_tail")

    def free_window(self):
        if self.shown is not None:
            self.shown.Unlock(1)
            COMM.send(("free_buffer", (), False), dest=1)
            self.shown.Free()
            self.shown = None

    def victims(self, count, path):
        if count > 1:
            self.missing("more than one death in a job")
        return Job(path)

    def death_texts(self, pid, how):
        return (ENDS[how],)  # it says 0 for the pid
