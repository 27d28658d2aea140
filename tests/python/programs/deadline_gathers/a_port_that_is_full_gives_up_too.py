import numpy

from monarch.actor import Actor, Channel, DeadlineExceeded, deadline, endpoint, this_host

PIECE = numpy.zeros(1 << 20, "u1")


class Flooder(Actor):
    @endpoint
    def flood(self, port, end):
        sent = 0
        try:
            with deadline(1):
                while True:
                    port.send(PIECE)
                    sent += 1
        except DeadlineExceeded as error:
            end.send((sent, str(error)))


end_port, end = Channel.open()


class Owner(Actor):
    def __init__(self):
        self.port, self.receiver = Channel.open()

    @endpoint
    def give(self):
        return self.port

    @endpoint
    def count(self, count):
        return sum(len(self.receiver.recv().get(timeout=10)) for _ in range(count)) >> 20


procs = this_host().spawn_procs(per_host={"gpus": 2})
owner, flooder = procs.slice(gpus=0).spawn("owner", Owner), procs.slice(gpus=1).spawn("flooder", Flooder)
flooder.flood.broadcast(owner.give.call_one().get(), end_port)
sent, why = end.recv().get()
print(why, 64 <= sent < 300, owner.count.call_one(sent).get() == sent)
