import asyncio
import os

from worker import status_of

from monarch.actor import Actor, concurrent_endpoint, this_host


class Forker(Actor):
    def __init__(self):
        self.ran = []

    @concurrent_endpoint
    async def fork(self, others):
        await self.turn(others)
        pid = os.fork()
        if pid == 0:
            await asyncio.sleep(0)
            print("went on", flush=True)
            await asyncio.sleep(0)
            os._exit(0)
        return status_of(pid)

    @concurrent_endpoint
    async def touch(self, i):
        self.ran.append(i)
        await asyncio.sleep(0)
        with open(os.environ["TMPDIR"] + f"/touched-{i}", "a") as file:
            file.write("x")

    async def turn(self, count):
        while len(self.ran) < count:
            await asyncio.sleep(0)


forker = this_host().spawn_procs().spawn("forker", Forker)
for round in range(10):
    done = forker.fork.call_one(20 * (round + 1))
    others = [forker.touch.call_one(20 * round + i) for i in range(20)]
    assert done.get(timeout=20) == 1
    for other in others:
        other.get(timeout=20)
for i in range(200):
    path = os.environ["TMPDIR"] + f"/touched-{i}"
    assert open(path).read() == "x", i
    os.remove(path)
