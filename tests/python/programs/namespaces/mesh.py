"""Two actors on each of the hosts that are named; failures are kept in ``faults``."""

import os
import socket
import sys
import threading
import time

import monarch.actor
from monarch.actor import Actor, Channel, MeshFailure, SupervisionError, attach_to_workers, endpoint


class Worker(Actor):
    def __init__(self):
        self.taken = []
        self.stopping = threading.Event()

    @endpoint
    def where(self):
        """Its pid, and the address of its machine."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
            there.connect(("10.77.0.1", 1))
            return os.getpid(), there.getsockname()[0]

    @endpoint
    def take(self, number):
        self.taken.append(number)
        return number

    @endpoint
    def all_taken(self):
        return self.taken

    @endpoint
    def pour(self, port, name):
        """Sends its name with numbers, from here on."""
        self.poured = 0

        def pour():
            while not self.stopping.wait(0.002):
                port.send((name, self.poured))
                self.poured += 1

        self.thread = threading.Thread(target=pour)
        self.thread.start()

    @endpoint
    def end_of_pouring(self):
        self.stopping.set()
        self.thread.join()
        return self.poured

    @endpoint
    async def ask(self, other, number, begun):
        begun.send(None)
        try:
            return await other.take.call_one(number)
        except SupervisionError as error:
            return f"{error}"


faults: list[MeshFailure] = []
monarch.actor.unhandled_fault_hook = lambda failure: faults.append(failure)
hosts = attach_to_workers(workers=sys.argv[1:], name="machines")
procs = hosts.spawn_procs({"gpus": 2}, name="procs")
workers = procs.spawn("workers", Worker)
places = workers.where.call().get(timeout=30).values()
on = [workers.slice(hosts=number) for number in range(len(sys.argv) - 1)]


def error_of(future):
    error = future.exception(timeout=20)
    assert isinstance(error, SupervisionError), error
    return str(error)


def crashed(mesh):
    """Its ranks that the script was told of, in that order."""
    return [rank for fault in faults if fault.mesh_name == mesh for rank in fault.crashed_ranks]


def tell(word):
    """Says that something is the case, and waits until the test has done what it does then."""
    print(word, flush=True)
    sys.stdin.readline()
