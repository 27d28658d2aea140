"""What w22.py runs again and again: prints the ms from its first import to the first answers. `kill`: ends its job."""

import time

start = time.perf_counter()

import os  # noqa: E402
import sys  # noqa: E402

from monarch.actor import Actor, endpoint  # noqa: E402
from monarch.job import ProcessJob  # noqa: E402


class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()


job = ProcessJob({"hosts": 1})
if sys.argv[1:] == ["kill"]:
    job.state()
    job.kill()
else:
    workers = job.state().hosts.spawn_procs(per_host={"gpus": 2}).spawn("workers", Worker)
    assert len(list(workers.pid.call().get())) == 2
    print((time.perf_counter() - start) * 1e3)
