import asyncio
import threading
import time

from monarch.actor import Actor, context, endpoint, this_host


class Async(Actor):
    @endpoint
    async def f(self):
        await asyncio.sleep(0)

    @endpoint
    def leave(self):
        context().actor_instance.stop()

    @endpoint
    def ticks(self):
        return time.process_time()


procs = this_host().spawn_procs(per_host={"gpus": 1})
mesh = procs.options(per_proc={"actors": 20}).spawn("some", Async)
mesh.f.call().get()
mesh.slice(gpus=0, actors=slice(0, 10)).leave.call().get()
one = mesh.slice(gpus=0, actors=19)
mesh.slice(gpus=0, actors=slice(10, 20)).f.call().get()
before = one.ticks.call_one().get()
threading.Event().wait(3)
print(one.ticks.call_one().get() - before)
