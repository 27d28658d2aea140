"""One user's job, on its own host and on this machine. Another user's host refuses it."""

import os
import sys

from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, this_host


class Worker(Actor):
    @endpoint
    def user(self):
        return os.getuid()


mine, other = sys.argv[1:]
hosts = attach_to_workers(workers=[mine])
both = [hosts.spawn_procs({"gpus": 2}), this_host().spawn_procs({"gpus": 2})]
for procs in both:
    assert procs.spawn("worker", Worker).user.call().get(timeout=30).values() == [os.getuid()] * 2
print("up", flush=True)
sys.stdin.readline()
try:
    attach_to_workers(workers=[other]).initialized.get(timeout=30)
except SupervisionError as error:
    assert other in str(error) and "certificate" in str(error), error
else:
    raise AssertionError("attached to somebody else's host")
