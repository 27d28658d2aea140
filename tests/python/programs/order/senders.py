from monarch.actor import Actor, context, endpoint, this_host

COUNT, SENDERS = 300, 4


class Sink(Actor):
    def __init__(self):
        self.seen = {}

    @endpoint
    def note(self, sender, number):
        self.seen.setdefault(sender, []).append(number)

    @endpoint
    def get(self):
        return self.seen


class Sender(Actor):
    @endpoint
    def run(self, sinks):
        me, last = context().actor_instance.rank.rank, []
        for i in range(COUNT):
            sinks.note.broadcast(me, 3 * i)  # a cast to all
            sinks.slice(gpus=slice(me % 2, None)).note.broadcast(me, 3 * i + 1)  # to a slice with both kinds of sinks
            last.append(sinks.slice(gpus=2).note.call_one(me, 3 * i + 2))  # to one, with an answer
        for future in last:
            future.get(timeout=60)
        sinks.get.call().get(timeout=60)


procs = this_host().spawn_procs({"gpus": 3})
sinks = procs.spawn("sinks", Sink)
senders = this_host().spawn_procs({"gpus": SENDERS}).spawn("senders", Sender)
senders.run.call(sinks).get(timeout=90)
for rank, (_, seen) in enumerate(sinks.get.call().get(timeout=60)):
    for sender in range(SENDERS):
        reached = (True, rank >= sender % 2, rank == 2)
        own = [i for i in range(3 * COUNT) if reached[i % 3]]
        assert seen[sender][: len(own)] == own, (rank, sender)
print("in order")
