"""Two processes of 5000 actors each, of both kinds; the meshes are stopped if the argument says so."""

import asyncio
import sys

from monarch.actor import Actor, endpoint, this_host


class Sync(Actor):
    def __init__(self):
        self.n = 0

    @endpoint
    def add(self, k):
        self.n += k
        return self.n


class Async(Sync):
    @endpoint
    async def add_later(self, k):
        await asyncio.sleep(0)
        self.n += k
        return self.n


procs = this_host().spawn_procs(per_host={"gpus": 2})
swarms = procs.options(per_proc={"actors": 5000})
sync = swarms.spawn("many", Sync)
later = swarms.spawn("many", Async)
for mesh in sync, later:
    mesh.add.broadcast(1)
    assert mesh.add.call(2).get().values() == [3] * 10000
assert later.add_later.call(2).get().values() == [5] * 10000
if sys.argv[1] == "stop":
    sync.stop().get()
    later.stop().get()
print("done")
