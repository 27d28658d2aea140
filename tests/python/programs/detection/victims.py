import ctypes
import os
import select
import signal
import threading
import time

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Victim(Actor):
    def __init__(self):
        self.ballast = None

    @endpoint
    def grow(self, size):
        self.ballast = bytearray(b"\1") * size
        return os.getpid()

    @endpoint
    def wait(self):
        threading.Event().wait()

    @endpoint
    def end(self, how):
        {
            "segfault": lambda: ctypes.string_at(0),
            "abort": os.abort,
            "code": lambda: os._exit(7),
            "zero": lambda: os._exit(0),
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        }[how]()

    @endpoint
    def become(self):
        os.execv("/bin/sleep", ["sleep", "1000"])

    @endpoint
    def look_dead(self):
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()
        return os.getpid()

    @endpoint
    def ask(self, other):
        try:
            other.wait.call_one().get()
        except SupervisionError as error:
            return str(error)


def victim():
    return this_host().spawn_procs().spawn("victim", Victim)


def is_gone(pidfd):
    return bool(select.select([pidfd], [], [], 0)[0])


def failure_of(call):
    """What the call fails with."""
    start = time.monotonic()
    try:
        call()
    except SupervisionError as error:
        assert time.monotonic() - start < 5, "a death is an event, and not found out by a time-out"
        return error
    raise AssertionError("no error")
