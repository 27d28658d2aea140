import os
import time

from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host, this_proc


class Leaf(Actor):
    def __init__(self, tag="leaf"):
        self.tag = tag

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def ask(self, other):
        return other.pid.call_one().get()

    @endpoint
    async def ask_async(self, other):
        return await other.pid.call_one()

    @endpoint
    def relay(self, first, second):
        return first.ask.call_one(second).get()

    @endpoint
    def die(self):
        os._exit(3)

    def __cleanup__(self, error):
        print("cleaned up", self.tag, flush=True)


class Boss(Actor):
    def __init__(self, count=2):
        self.procs = this_host().spawn_procs(per_host={"gpus": count})
        self.leaves = self.procs.spawn("leaf", Leaf, "nested")

    def __supervise__(self, failure):
        return True

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def handles(self):
        return self.leaves

    @endpoint
    def pids(self):
        return list(self.leaves.pid.call().get().values())

    @endpoint
    def more(self):
        return this_host().spawn_procs().spawn("more", Leaf, "more")

    @endpoint
    def local(self):
        leaf = this_proc().spawn("local", Leaf, "local")
        return leaf, leaf.pid.call_one().get()

    @endpoint
    def die(self):
        os._exit(3)

    @endpoint
    def end(self):
        self.procs.stop("by the boss").get()


procs = this_host().spawn_procs(per_host={"gpus": 2})
boss = procs.slice(gpus=slice(0, 1)).spawn("boss", Boss)
leaves = procs.spawn("leaf", Leaf, "top")


def fails(call, *texts):
    start = time.monotonic()
    try:
        call()
    except (SupervisionError, ActorError) as error:
        assert time.monotonic() - start < 5, "a death is an event, and not found out by a time-out"
        for text in texts:
            assert text in str(error), (text, str(error))
        return
    raise AssertionError("no error")
