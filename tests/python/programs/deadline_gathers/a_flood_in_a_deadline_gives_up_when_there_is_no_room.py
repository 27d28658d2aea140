import threading

import numpy

from monarch.actor import Actor, Channel, DeadlineExceeded, deadline, endpoint, this_host

PIECE = numpy.zeros(1 << 20, "u1")


class Slow(Actor):
    @endpoint
    def block(self, port):
        gate, receiver = Channel.open()
        port.send(gate)
        thread = threading.Thread(target=lambda: receiver.recv().get())
        thread.start()
        thread.join()

    @endpoint
    def take(self, piece):
        pass


slow = this_host().spawn_procs().spawn("slow", Slow)
port, receiver = Channel.open()
slow.block.broadcast(port)
gate = receiver.recv().get()
sent = 0
try:
    with deadline(1):
        while True:
            slow.take.broadcast(PIECE)
            sent += 1
except DeadlineExceeded as error:
    print(error)
assert 64 <= sent < 300, sent
gate.send("go on")
slow.take.call_one(None).get()
try:
    with deadline(0.2):
        slow.block.call_one(port).get()
except DeadlineExceeded as error:
    print(error)
receiver.recv().get().send("go on")
