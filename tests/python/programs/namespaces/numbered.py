"""Numbered messages in every direction while the last machine is cut off: nothing is lost, and nothing comes twice."""

import os

from mesh import faults, hosts, on, procs, tell, workers
from worker import Worker

from monarch.actor import Channel

numbers, arriving = Channel.open()
for number, each in enumerate(on):
    each.slice(gpus=0).pour.call_one(numbers, number).get(timeout=30)
begun, begins = Channel.open()
asker = procs.slice(hosts=0, gpus=1).spawn("asker", Worker)
asker.ask.call_one(on[2].slice(gpus=1), 99, begun).get(timeout=30)
tell("up")
# The cable of the last machine is pulled. Its neighbour asks it, and so does the script.
asked = [workers.take.call(i) for i in range(50)]
beside = [asker.ask.call_one(on[2].slice(gpus=0), 100 + i, begun) for i in range(20)]
for i in range(20):
    workers.take.broadcast(200 + i)
data = os.urandom(16 << 20)
large = on[2].slice(gpus=1).same.call_one(data)
others = workers.slice(hosts=slice(0, 2)).take.call(300).get(timeout=20)
begins.recv().get(timeout=20)
assert isinstance(asked[0].exception(timeout=0.2), TimeoutError)
tell("cut")
assert [each.get(timeout=30).values() for each in asked] == [[i] * 6 for i in range(50)]
assert large.get(timeout=30) == data
beside = [each.get(timeout=30) for each in beside]
assert beside == [100 + i for i in range(20)], beside
workers.take.call(400).get(timeout=20)
for rank, taken in enumerate(workers.all_taken.call().get(timeout=20).values()):
    mine = [i for i in taken if not 99 <= i < 200]
    assert mine == [*range(50), *range(200, 220), *([300] if rank < 4 else []), 400], (rank, taken)
    assert [i for i in taken if 100 <= i < 200] == ([*range(100, 120)] if rank == 4 else []), (rank, taken)
poured = [each.slice(gpus=0).end_of_pouring.call_one().get(timeout=30) for each in on]
came = [0, 0, 0]
while came != poured:
    host, number = arriving.recv().get(timeout=20)
    assert number == came[host], (host, number, came, poured)
    came[host] += 1
assert not faults
hosts.stop().get()
