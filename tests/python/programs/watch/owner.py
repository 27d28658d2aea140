"""The process that has spawned a mesh is stopped, and somebody else waits for a call of that mesh."""

import os
import signal

from halting import stop

from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.config import configure


class Member(Actor):
    @endpoint
    def step(self) -> str:
        signal.pause()
        return "done"


class Owner(Actor):
    @endpoint
    def make(self, procs: object) -> Member:
        return procs.spawn("bb", Member)  # type: ignore[attr-defined]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


configure(supervision_watchdog_timeout="1s")
procs = this_host().spawn_procs(per_host={"gpus": 2}, name="procs")
owner = procs.slice(gpus=0).spawn("owner", Owner)
members = owner.make.call_one(procs.slice(gpus=1)).get()
pid = owner.pid.call_one().get()
stop(pid)
try:
    members.step.call_one().get(timeout=10)
except SupervisionError as error:
    print(str(error).replace("\n", "|"))
os.kill(pid, signal.SIGCONT)
assert owner.pid.call_one().get(timeout=10) == pid
procs._kill().get()
