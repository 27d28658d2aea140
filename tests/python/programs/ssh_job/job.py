"""Hosts by SSHJob, and an actor on each. Arguments: where the job is saved, or "-", and what they are called."""

import os
import subprocess
import sys

from monarch.actor import Actor, endpoint
from monarch.job import SSHJob


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def leave(self) -> int:
        """Starts a process in a session of its own."""
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


path = None if sys.argv[1] == "-" else sys.argv[1]
job = SSHJob(os.environ["PYTHON_THERE"], ["-F", os.environ["SSH_CONFIG"]], monarch_port=0)
job.add_mesh("hosts", sys.argv[2:])
