import collections
import os
import time

import numpy as np
from kept import Child, Keeper

from monarch.actor import endpoint, this_host


class Storm(Keeper):
    children: collections.deque = collections.deque()

    @endpoint
    def fork(self, array, value):
        self.children.append(Child(array, value))
        return self.children.popleft().wrong() if len(self.children) > 30 else 0

    @endpoint
    def end(self):
        return sum(child.wrong() for child in self.children), len(os.listdir("/proc/self/fd"))

    @endpoint
    def descriptors(self):
        return len(os.listdir("/proc/self/fd"))


storm = this_host().spawn_procs().spawn("storm", Storm)
storm.take.call_one(np.ones(1 << 16, np.uint8)).get()
before = storm.descriptors.call_one().get()
waiting = [storm.fork.call_one(np.full(1 << 16, i % 250, np.uint8), i % 250) for i in range(300)]
assert [wrong.get(timeout=60) for wrong in waiting] == [0] * 300
assert storm.end.call_one().get(timeout=20)[0] == 0
limit = time.monotonic() + 20
while storm.descriptors.call_one().get() > before:
    assert time.monotonic() < limit
