"""Hosts on machines of their own: network namespaces, whose cables are pulled."""

import pytest
from network import network, wait_until  # noqa: F401 (a fixture)
from script_run import program

MESH = program("namespaces/mesh.py")


def test_a_mesh_over_three_machines(network):
    network.run("""
assert [address for _, address in places] == [f"10.77.0.{2 + rank // 2}" for rank in range(6)]
begun, _ = Channel.open()
for a in range(3):
    for b in range(3):
        assert on[a].slice(gpus=0).ask.call_one(on[b].slice(gpus=1), 3 * a + b, begun).get(timeout=30) == 3 * a + b
assert workers.all_taken.call().get(timeout=30).values() == [[], [0, 3, 6], [], [1, 4, 7], [], [2, 5, 8]]
big = os.urandom(8 << 20)
assert all(taken == big for taken in workers.take.call(big).get(timeout=30).values())
hosts.stop().get()
""", begin=MESH).ok()  # fmt: skip
    network.end()


NUMBERED = MESH + """
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
others = workers.slice(hosts=slice(0, 2)).take.call(300).get(timeout=20)
begins.recv().get(timeout=20)
assert isinstance(asked[0].exception(timeout=0.2), TimeoutError)
tell("cut")
assert [each.get(timeout=30).values() for each in asked] == [[i] * 6 for i in range(50)]
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
"""


def test_a_cable_that_is_put_back_at_once_costs_nothing(network):
    run = network.run("", begin=NUMBERED, env={"MONARCH_HOST_LEASE": "20s"})
    run.line("up")
    network.pull(2)
    run.tell("\n")
    run.line("cut")
    network.put_back(2)
    run.tell("\n")
    run.ok()
    network.end()


def test_a_cable_that_is_put_back_within_the_lease_costs_nothing_where_connections_are_made_anew(network):
    run = network.run("", begin=NUMBERED, env={"MONARCH_HOST_LEASE": "5s"})
    run.line("up")
    script, there = run.process.pid, network.addresses[2]
    before = network.connections(script, there)
    network.pull(2)
    run.tell("\n")
    run.line("cut")
    wait_until(lambda: not before <= network.connections(script, there), "a connection is given up")
    network.put_back(2)
    run.tell("\n")
    run.ok()
    network.end()
