import asyncio
import os

from monarch.actor import Actor, current_rank, endpoint
from monarch.testing import local_procs


class Sync(Actor):
    @endpoint
    def rank(self):
        return current_rank().rank


class Async(Actor):
    @endpoint
    async def rank(self):
        await asyncio.sleep(0)
        return current_rank().rank


def state():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def one_test(cls):
    with local_procs({"gpus": 4}) as procs:
        assert procs.spawn("actors", cls).rank.call().get().values() == [0, 1, 2, 3]


for _ in range(3):
    one_test(Sync), one_test(Async)
before = state()
for _ in range(30):
    one_test(Sync), one_test(Async)
after = state()
assert after[0] == before[0], (before, after)
assert after[1] <= before[1] + 4, (before, after)  # the next actors may begin before the threads of the last are parked
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print("children", children)
