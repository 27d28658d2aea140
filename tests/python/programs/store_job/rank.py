"""A process of a run of torchrun, whose store is a test's. Arguments: where that is, and what from_store() is told.

It ends when its stdin does. The one that has the job does what the lines there say.
"""

import json
import os
import sys
from multiprocessing.managers import BaseManager

from monarch.actor import Actor, endpoint
from monarch.job.spmd import StoreJob


class Manager(BaseManager):
    pass


class Process(Actor):
    @endpoint
    def rank(self) -> str:
        return os.environ["RANK"]


Manager.register("store")
manager = Manager(sys.argv[1], authkey=b"test")
manager.connect()
store = manager.store()  # type: ignore[attr-defined]
job = StoreJob.from_store(store, **json.loads(sys.argv[2]))
print("job" if job is not None else "no job", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
