import sys
import threading

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Failing(Actor):
    def __init__(self, how="no"):
        if how == "raise":
            raise ValueError("at birth")
        if how == "exit":
            sys.exit(7)
        if how == "hang":
            print("hanging", flush=True)
            threading.Event().wait()

    @endpoint
    def work(self):
        return 1

    @endpoint
    def fail(self):
        raise KeyError("in passing")

    @endpoint
    def leave(self):
        raise SystemExit(5)

    @endpoint
    async def async_leave(self):
        raise KeyboardInterrupt()


procs = this_host().spawn_procs(per_host={"gpus": 2})


def fails(call, *texts):
    try:
        call()
    except SupervisionError as error:
        for text in texts:
            assert text in str(error), (text, str(error))
        return
    raise AssertionError("no error")
