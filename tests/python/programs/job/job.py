"""Hosts by ProcessJob, and an actor for them. Arguments: where the job is saved, or "-", and how many (2)."""

import os
import subprocess
import sys

from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def leave(self, command: list[str], bare: bool) -> int:
        """Starts a process in a session of its own; ``bare``: without an environment."""
        env: dict[str, str] | None = {} if bare else None
        return subprocess.Popen(command, env=env, start_new_session=True).pid


def lineage(pid: int, first: int) -> list[int]:
    """From ``first``, a process that has not been started by another one of these, to ``pid``."""
    found = [pid]
    while found[0] != first:
        with open(f"/proc/{found[0]}/stat") as file:
            found.insert(0, int(file.read().rpartition(") ")[2].split()[1]))
    return found


path = None if sys.argv[1] == "-" else sys.argv[1]
count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
job = ProcessJob({"hosts": count})
state = job.state(path)
workers = state.hosts.spawn_procs({"gpus": 2}).spawn("worker", Worker)
pids = workers.pid.call().get().values()
assert len(set(pids)) == 2 * count
