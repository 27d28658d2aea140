"""A process is stopped while a call waits for it: of the script's, of a worker's, or of nobody's."""

import os
import signal
import sys
import time

from monarch.actor import Actor, endpoint, this_host


class Trainer(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def step(self) -> str:
        time.sleep(0.2)
        return "done"

    @endpoint
    def ask(self, other: "Trainer") -> str:
        return other.step.call_one().get()


def stderr_size() -> int:
    return os.fstat(2).st_size


def wait_for_a_line(start: float) -> None:
    """On stderr, which is a file."""
    before = stderr_size()
    while stderr_size() == before and time.monotonic() < start + 10:
        time.sleep(0.01)


who = sys.argv[1]
procs = this_host().spawn_procs(per_host={"gpus": 3}, name="procs")
trainers = procs.spawn("trainer", Trainer)
last = trainers.slice(gpus=2)
pid = last.pid.call_one().get()
assert procs.stopped_ranks() == []
os.kill(pid, signal.SIGSTOP)
start = time.monotonic()
if who == "nobody":
    time.sleep(1)
else:
    call = last.step.call_one() if who == "script" else trainers.slice(gpus=0).ask.call_one(last)
    wait_for_a_line(start)
    print("told after", time.monotonic() - start)
    assert procs.stopped_ranks() == [2] and procs.slice(gpus=2).stopped_ranks() == [0]
    goes_on = time.monotonic()
    os.kill(pid, signal.SIGCONT)
    print("answered", call.get(timeout=10))
    wait_for_a_line(goes_on)
os.kill(pid, signal.SIGCONT)
assert procs.stopped_ranks() == []
procs.stop().get()
