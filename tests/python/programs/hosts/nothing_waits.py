"""Processes, actors and calls, while no process can start until the script writes to the pipe of the argument."""

import os
import sys

from monarch.actor import Actor, Future, endpoint, this_host


class A(Actor):
    def __init__(self, other=None):
        self.other = other

    @endpoint
    def add(self, x):
        return x + 1 if self.other is None else self.other.add.call_one(x).get()


path = sys.argv[1]


def bootstrap():
    os.read(os.open(path, os.O_RDONLY), 1)


gate = os.open(path, os.O_RDWR)
host = this_host()
first = host.spawn_procs({"gpus": 2}, bootstrap=bootstrap)
second = host.spawn_procs()
a = first.spawn("a", A)
b = second.spawn("b", A, a.slice(gpus=1))  # a mesh that is not there yet, in a message
pending: list[Future] = [first.initialized, a.add.call(1), b.add.call_one(2), a.slice(gpus=0).add.call_one(3)]
assert host.initialized.get(timeout=30) is True and second.initialized.get(timeout=30) is True
assert b.initialized.get(timeout=30) is None  # it says nothing about constructors
pending.append(a.initialized)
for future in pending:
    assert isinstance(future.exception(timeout=0.01), TimeoutError)
os.write(gate, b"12")
done = [future.get(timeout=30) for future in pending]
assert [done[0], done[1].values(), *done[2:]] == [True, [2, 2], 3, 4, None], done
