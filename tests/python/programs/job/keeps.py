"""A saved job with a counter on each of two hosts that outlives this script. Argument: where the job is saved."""

import os
import sys

from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> tuple[int, int]:
        self.count += 1
        return os.getpid(), self.count


def make(state):
    return state.hosts.spawn_procs({"gpus": 1}).spawn("counters", Counter)


job = ProcessJob({"hosts": 2})
job.state(sys.argv[1])
counters = job.adopt("counters", make)
answers = list(counters.add.call().get().values())
