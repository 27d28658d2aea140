import threading

from monarch.actor import Actor, Channel, endpoint, this_host


class Sender(Actor):
    @endpoint
    def start(self, port, who):
        self.thread = threading.Thread(target=self.send, args=(port, (who, "thread")))
        self.thread.start()
        self.send(port, (who, "actor"))
        self.thread.join()

    def send(self, port, who):
        for i in range(2000):
            port.send((who, i))


class Sink(Actor):
    def __init__(self):
        self.port, self.receiver = Channel.open()

    @endpoint
    def address(self):
        return self.port

    @endpoint
    def take(self, count):
        seen: dict = {}
        for _ in range(count):
            who, i = self.receiver.recv().get(timeout=30)
            assert seen.setdefault(who, 0) == i, (who, i, seen)
            seen[who] += 1
        return seen


procs = this_host().spawn_procs(per_host={"gpus": 4})
sink = procs.slice(gpus=0).spawn("sink", Sink)
meshes = [procs.spawn("senders", Sender) for _ in range(2)]
port = sink.address.call_one().get()
taking = sink.take.call_one(2 * 4 * 2 * 2000)
sending = [mesh.slice(gpus=rank).start.call_one(port, (i, rank)) for i, mesh in enumerate(meshes) for rank in range(4)]
[future.get(timeout=60) for future in sending]
seen = taking.get(timeout=60)
assert len(seen) == 16 and set(seen.values()) == {2000}, seen
print("done")
