"""What runs on the machines: they import this, and not what makes the mesh."""

import asyncio
import os
import socket
import threading

from monarch.actor import Actor, SupervisionError, endpoint


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
    def same(self, data):
        return data

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

    @endpoint
    async def ask_to_wait(self, other, seconds):
        return await other.wait.call_one(seconds)

    @endpoint
    async def wait(self, seconds):
        await asyncio.sleep(seconds)
        return seconds


class Sender(Worker):
    """Notes which of its one-way messages have come back."""

    def __init__(self):
        super().__init__()
        self.back = []

    @endpoint
    def send(self, other, number):
        other.take.broadcast(number)

    @endpoint
    def came_back(self):
        return self.back

    def _handle_undeliverable_message(self, message):
        self.back.append(message.error_msg())
        return True


class Owner(Worker):
    """Owns processes on a machine, and notes which of their ranks it is asked about."""

    @endpoint
    def own(self, hosts):
        self.asked = []
        self.procs = hosts.spawn_procs({"gpus": 2}, name="owned-procs")
        return self.procs.spawn("owned", Worker)

    def __supervise__(self, failure):
        self.asked += [(failure.mesh_name, rank) for rank in failure.crashed_ranks]
        return True

    @endpoint
    def was_asked(self):
        return self.asked
