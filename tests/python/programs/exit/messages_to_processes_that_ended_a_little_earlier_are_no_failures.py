from monarch.actor import Actor, Channel, endpoint, this_host


class Sink(Actor):
    def __init__(self):
        self.port, self.receiver = Channel.open()

    @endpoint
    def open(self):
        return self.port

    @endpoint
    def take(self, x): ...


class Source(Actor):
    @endpoint
    def go_on(self, me, sink, port, begun):
        port.send(1)
        sink.take.broadcast(1)
        if begun:
            begun.send(None)
        me.go_on.broadcast(me, sink, port, None)


procs = [this_host().spawn_procs() for _ in range(3)]
sink = procs[1].spawn("sink", Sink)
port = sink.open.call_one().get()
begun, receiver = Channel.open()
for mesh in (procs[0], procs[2]):
    source = mesh.spawn("source", Source)
    source.go_on.broadcast(source, sink, port, begun)
    receiver.recv().get()
