"""A process is stopped while a call waits for it: of the script's, of a worker's, of a guest's, or of nobody's; or one
that was made anew, through a handle of the old one."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from multiprocessing.pool import AsyncResult, ThreadPool

import cloudpickle
from halting import stop

from monarch.actor import Actor, Future, SupervisionError, endpoint, this_host


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


def ask_as_guest(trainer: Trainer) -> AsyncResult[str]:
    """From a process that has nothing to do with this one."""
    text = "import pickle, sys; t = pickle.load(sys.stdin.buffer); print(t.step.call_one().get(timeout=20))"
    guest = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    handle = cloudpickle.dumps(trainer)
    return ThreadPool(1).apply_async(lambda: guest.communicate(handle)[0].decode())


who = sys.argv[1]
procs = this_host().spawn_procs(per_host={"gpus": 3}, name="procs")
trainers = procs.spawn("trainer", Trainer)
last = trainers.slice(gpus=2)
pid = last.pid.call_one().get()
if who == "anew":
    killed = last.step.call_one()
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(SupervisionError):
        killed.get(timeout=10)
    procs.respawn([2]).get()
    pid = last.pid.call_one().get()
assert procs.stopped_ranks() == []
stop(pid)
start = time.monotonic()
if who == "nobody":
    time.sleep(1)
else:
    call: Future[str] | AsyncResult[str]
    if who == "guest":
        call = ask_as_guest(last)
    else:
        call = last.step.call_one() if who in ("script", "anew") else trainers.slice(gpus=0).ask.call_one(last)
    wait_for_a_line(start)
    print("told after", time.monotonic() - start)
    assert procs.stopped_ranks() == [2] and procs.slice(gpus=2).stopped_ranks() == [0]
    goes_on = time.monotonic()
    os.kill(pid, signal.SIGCONT)
    print("answered", call.get(timeout=10).strip())
    wait_for_a_line(goes_on)
os.kill(pid, signal.SIGCONT)
assert procs.stopped_ranks() == []
procs.stop().get()
