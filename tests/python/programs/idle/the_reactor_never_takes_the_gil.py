import asyncio
import os

from monarch import _core
from monarch.actor import Actor, SupervisionError, endpoint, this_host


class A(Actor):
    @endpoint
    def taken(self):
        return _core.gil_taken_by_reactor()

    @endpoint
    async def nested(self, other):
        return await other.taken.call_one()

    @endpoint
    def die(self):
        os._exit(1)


procs = this_host().spawn_procs(per_host={"gpus": 3})
actors = procs.spawn("a", A)
for _ in range(50):
    assert set(actors.taken.call().get().values()) == {0}


async def main():
    for _ in range(50):
        await actors.slice(gpus=0).nested.call_one(actors.slice(gpus=1))


asyncio.run(main())
actors.slice(gpus=2).die.broadcast()
try:
    while True:
        actors.taken.call().get()
except SupervisionError:
    pass
assert set(actors.slice(gpus=slice(0, 2)).taken.call().get().values()) == {0}
procs.stop().get()
assert _core.gil_taken_by_reactor() == 0
