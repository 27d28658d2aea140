"""Stopping a process for certain: on a machine with much to do it goes on for a while after kill() has come back."""

import os
import signal
from pathlib import Path


def stop(pid: int) -> None:
    """Until it is: all of its threads must have taken note."""
    os.kill(pid, signal.SIGSTOP)
    for thread in os.listdir(f"/proc/{pid}/task"):
        while Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            os.sched_yield()
