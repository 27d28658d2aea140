"""pyzmq: a DEALER pair per worker over ipc, pickled requests, dispatch by method name; arrays as frames of their own.

Run as a program (`-m systems.zmq_sockets ADDRESS RANK`) it is the worker.
"""

import pickle
import shutil
import subprocess
import sys
import tempfile

import zmq

from harness import pin_process
from systems.base import ERROR_TEXT, PAYLOAD, BaseSystem, look


class Worker:
    def __init__(self, rank):
        self.rank = rank
        self.received = 0

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

    def add_rank(self, x):
        return x + self.rank

    def look(self, everything, frame):
        import numpy

        return look(numpy.frombuffer(frame, "u1"), everything)


def serve(address, rank):
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    worker = Worker(rank)
    while (request := pickle.loads(socket.recv())) is not None:
        method, arguments = request
        if method == "look":
            arguments = (*arguments, socket.recv(copy=False).buffer)
        try:
            answer = getattr(worker, method)(*arguments)
        except Exception as error:
            answer = error
        if method != "receive":
            socket.send(pickle.dumps(answer, 5))
    socket.close(0)


def encode(method, *arguments):
    return pickle.dumps((method, arguments), 5)


class Peer:
    """The controller's end of one worker process."""

    def __init__(self, context, folder, rank):
        address = f"ipc://{folder}/{rank}"
        self.socket = context.socket(zmq.DEALER)
        self.socket.bind(address)
        self.process = subprocess.Popen([sys.executable, "-m", "systems.zmq_sockets", address, str(rank)])

    def ask(self, method, *arguments):
        self.socket.send(encode(method, *arguments))
        answer = pickle.loads(self.socket.recv())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self):
        self.socket.send(pickle.dumps(None))
        self.process.wait()
        self.socket.close(0)


class System(BaseSystem):
    import_statement = "import zmq"

    def __init__(self):
        self.context = zmq.Context()
        self.peers = []

    def make_peers(self, procs):
        folder = tempfile.mkdtemp(prefix="bench_zmq_")
        peers = [Peer(self.context, folder, rank) for rank in range(procs)]

        def end():
            for peer in peers:
                peer.end()
            shutil.rmtree(folder)

        return peers, end

    def start(self, procs, kind="sync"):
        self.peers, self.stop = self.make_peers(procs)
        self.first = self.peers[0]
        self.first.ask("add", 1, 2)

    def pids(self):
        return [peer.process.pid for peer in self.peers]

    def place_workers(self, cpus):
        for peer in self.peers:
            peer.ask("pin", cpus)

    def caller(self):
        ask = self.first.ask
        return lambda: ask("add", 1, 2)

    def async_caller(self):
        import zmq.asyncio

        socket = zmq.asyncio.Socket.from_socket(self.first.socket)

        async def call():
            await socket.send(encode("add", 1, 2))
            return pickle.loads(await socket.recv())

        return call

    def raiser(self):
        ask = self.first.ask

        def call():
            try:
                ask("fail")
            except ValueError as error:
                return str(error)

        return call

    def window(self, count):
        send, receive = self.first.socket.send, self.first.socket.recv

        def call():
            for index in range(count):
                send(encode("take", index, PAYLOAD))
            return [pickle.loads(receive()) for _ in range(count)]

        return call

    def one_way(self):
        send, ask = self.first.socket.send, self.first.ask
        return lambda: send(encode("receive", PAYLOAD)), lambda: ask("count_received")

    def all_caller(self):
        sockets = [peer.socket for peer in self.peers]

        def call(x):
            request = encode("add_rank", x)
            for socket in sockets:
                socket.send(request)
            return [pickle.loads(socket.recv()) for socket in sockets]

        return call

    def array_sender(self, everything):
        socket = self.first.socket

        def call(array):
            socket.send(encode("look", everything), zmq.SNDMORE)
            socket.send(array, copy=False)
            return pickle.loads(socket.recv())

        return call

    def spawn_round(self, procs):
        peers, end = self.make_peers(procs)
        return [peer.ask("add_rank", 1) for peer in peers], end


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
