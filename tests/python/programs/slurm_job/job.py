"""A SlurmJob of two nodes, and an actor for them. Arguments: where the job is saved, or "-", and options of sbatch."""

import os
import sys

from monarch.actor import Actor, endpoint
from monarch.job import SlurmJob


class Worker(Actor):
    @endpoint
    def node(self) -> tuple[str, int]:
        return os.environ["SLURMD_NODENAME"], os.getppid()


path = None if sys.argv[1] == "-" else sys.argv[1]
job = SlurmJob({"hosts": 2}, python_exe=sys.executable, monarch_port=0, slurm_args=sys.argv[2:])
print("applying", flush=True)
state = job.state(path)
nodes = state.hosts.spawn_procs().spawn("worker", Worker).node.call().get().values()
assert isinstance(job._running, SlurmJob)
print(job._running._job_id, *[name for name, _ in nodes], flush=True)
