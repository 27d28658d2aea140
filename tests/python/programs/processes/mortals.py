import ctypes
import os
import signal
import threading
import time

from monarch.actor import Actor, SupervisionError, current_rank, endpoint, this_host


def segfault():
    import faulthandler

    faulthandler.disable()
    ctypes.string_at(0)


HOW = {
    "os._exit": lambda: os._exit(3),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": segfault,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit 0": lambda: os._exit(0),
}


class Mortal(Actor):
    def __init__(self):
        self.my_rank = current_rank()["gpus"]

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def rank(self):
        return self.my_rank

    @endpoint
    def die(self, how, rank=1):
        if self.my_rank == rank:
            HOW[how]()

    @endpoint
    def wait(self):
        print("waiting")
        threading.Event().wait()


class Stillborn(Actor):
    def __init__(self, how, rank=1):
        self.my_rank = current_rank()["gpus"]
        if self.my_rank == rank:
            HOW[how]()

    @endpoint
    def rank(self):
        return self.my_rank


def fails(call, *texts):
    start = time.monotonic()
    try:
        call()
    except SupervisionError as error:
        assert time.monotonic() - start < 5, "a death is an event, and not found out by a time-out"
        for text in texts:
            assert text in str(error), (text, str(error))
        return
    raise AssertionError("no error")


procs = this_host().spawn_procs(per_host={"gpus": 3}, name="trainers")
mortals = procs.spawn("mortal", Mortal)
pids = [pid for _, pid in mortals.pid.call().get().items()]
