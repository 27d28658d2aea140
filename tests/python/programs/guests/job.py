import asyncio
import os
import signal

from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint, this_host


class Counter(Actor):
    def __init__(self, value=0):
        self.value = value

    @endpoint
    def add(self, by):
        self.value += by
        return self.value

    @endpoint
    def get(self):
        return self.value

    @endpoint
    def fail(self):
        raise KeyError("mine")

    @endpoint
    def double(self, array):
        return array * 2

    @endpoint
    def ask(self, others):
        return [value for _, value in others.add.call(1).get().items()]

    @endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def pid(self):
        return os.getpid()


class Waiter(Actor):
    @concurrent_endpoint
    async def wait(self):
        print("waiting", current_rank().rank, flush=True)
        await asyncio.Event().wait()


procs = this_host().spawn_procs(per_host={"gpus": 2})
counters = procs.spawn("counters", Counter, 10)
waiters = procs.spawn("waiters", Waiter)
