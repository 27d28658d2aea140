"""An actor computes, with the GIL or without, or sleeps, for longer than several looks take."""

import ctypes
import sys
import time

from monarch.actor import Actor, endpoint, this_host


class Busy(Actor):
    @endpoint
    def step(self, how: str, seconds: float) -> str:
        end = time.monotonic() + seconds
        if how == "gil":
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        elif how == "sleep":
            time.sleep(seconds)
        while time.monotonic() < end:
            pass
        return "done"


procs = this_host().spawn_procs(per_host={"gpus": 2}, name="procs")
print(procs.spawn("busy", Busy).step.call(sys.argv[1], 2.5).get())
procs.stop().get()
