import os
import threading

from monarch.actor import Actor, endpoint, shutdown_context, this_host


class A(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def large(self):
        return b"x" * 1_000_000, [1]

    @endpoint
    def block(self):
        threading.Event().wait()

    @endpoint
    def shut_down(self, timeout=None):
        return shutdown_context(timeout).get(timeout=10)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def mesh(count=2):
    return this_host().spawn_procs(per_host={"gpus": count}).spawn("a", A)


def refused(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)


ENDED = "the monarch runtime of this process has ended"
