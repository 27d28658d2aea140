"""The last machine is cut off, for longer than the lease, then it can be reached again."""

import sys
import time

from mesh import crashed, error_of, faults, hosts, on, places, procs, tell, workers
from worker import Owner, Worker

from monarch.actor import Channel, attach_to_workers

owner = procs.slice(hosts=0, gpus=0).spawn("owner", Owner)
owned = owner.own.call_one(hosts.slice(hosts=2)).get(timeout=30)
there = [*places[4:], *owned.where.call().get(timeout=30).values()]
print("pid", *(pid for pid, _ in there))
tell("up")
at = time.monotonic()
asked = [on[2].slice(gpus=i % 2).take.call_one(i) for i in range(4)] + [workers.take.call(i) for i in range(4)]
cause = "was lost (rank {'hosts': 2/3} of 'machines', on 10.77.0.4): nothing has come from it for 1 s (host_lease)"
assert all(cause in error_of(each) for each in asked)
assert 0.5 < time.monotonic() - at < 4, time.monotonic() - at
while len(faults) < 4:
    time.sleep(0.01)
assert sorted(crashed("workers")) == sorted(crashed("procs")) == [4, 5], "each is asked about once"
while len(asked_about := owner.was_asked.call_one().get(timeout=20)) < 4:
    time.sleep(0.01)
assert sorted(asked_about) == [(mesh, rank) for mesh in ("owned", "owned-procs") for rank in range(2)], asked_about
begun, _ = Channel.open()
assert cause in on[0].slice(gpus=0).ask.call_one(on[2].slice(gpus=0), 2, begun).get(timeout=20)
assert on[0].slice(gpus=0).ask.call_one(on[1].slice(gpus=0), 3, begun).get(timeout=20) == 3
assert hosts.slice(hosts=slice(0, 2)).spawn_procs().initialized.get(timeout=20) is True
assert len(faults) == 4
tell("lost")
again = attach_to_workers(workers=sys.argv[1:], name="again")
new = again.spawn_procs().spawn("new", Worker)
assert [address for _, address in new.where.call().get(timeout=30).values()] == [f"10.77.0.{2 + i}" for i in range(3)]
answer = new.slice(hosts=0).ask.call_one(new.slice(hosts=2), 4, begun).get(timeout=20)
assert answer == 4, answer
assert new.slice(hosts=2).ask.call_one(on[0].slice(gpus=0), 5, begun).get(timeout=20) == 5
again.stop().get()
