"""The script of a batch job of SlurmJob({"hosts": 2}); it ends with status 3."""

import os
import sys

from monarch.actor import Actor, endpoint
from monarch.job import SlurmJob


class Worker(Actor):
    @endpoint
    def node(self) -> str:
        assert "MONARCH_BATCH_JOB" not in os.environ
        return os.environ["SLURMD_NODENAME"]


job = SlurmJob({"hosts": 2}, python_exe=sys.executable, monarch_port=0)
hosts = job.state().hosts
print("batch", os.environ["MONARCH_BATCH_JOB"], *hosts.spawn_procs().spawn("w", Worker).node.call().get().values())
assert job.apply_id is not None and not os.path.exists(".monarch/job_state.pkl")
job.kill()
print("again", *job.state().hosts.spawn_procs().spawn("w", Worker).node.call().get().values(), flush=True)
sys.exit(3)
