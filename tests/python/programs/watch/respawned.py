"""A process in the place of one that has died: a cycle through it is found, and it is told when it is stopped."""

import os
import signal
import sys
import time

from halting import stop

import monarch.actor
from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host


class Member(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    @endpoint
    def step(self, other: "Member", me: "Member") -> int:
        return other.merge.call_one(me).get()

    @endpoint
    def merge(self, other: "Member") -> int:
        return other.pid.call_one().get()


def wait_for_a_line() -> None:
    """On stderr, which is a file."""
    deadline = time.monotonic() + 10
    while os.fstat(2).st_size == 0 and time.monotonic() < deadline:
        os.sched_yield()


monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs(per_host={"gpus": 2}, name="procs")
members = procs.spawn("member", Member)
first, second = members.slice(gpus=0), members.slice(gpus=1)
try:
    second.die.call_one().get(timeout=10)
except SupervisionError:
    procs.respawn(1).get(timeout=10)
pid = second.pid.call_one().get(timeout=10)
if sys.argv[1] == "cycle":
    try:
        first.step.call_one(second, first).get(timeout=10)
    except ActorError as error:
        print("raised", str(error).replace("\n", " "))
else:
    stop(pid)
    call = second.pid.call_one()
    wait_for_a_line()
    print("stopped", procs.stopped_ranks())
    if sys.argv[1] == "lease":
        try:
            call.get(timeout=10)
        except SupervisionError as error:
            print("raised", str(error).replace("\n", " "))
    else:
        os.kill(pid, signal.SIGCONT)
        assert call.get(timeout=10) == pid
procs.stop().get()
