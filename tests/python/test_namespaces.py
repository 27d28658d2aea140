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
