import os
import signal
import sys

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Mortal(Actor):
    @endpoint
    def die(self):
        for i in range(3000):
            print("line", i)
        sys.stderr.write("last words, without an end")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


try:
    this_host().spawn_procs().spawn("m", Mortal).die.call_one().get()
except SupervisionError as error:
    print("[script] " + ("sig=9" in str(error)) * "dead")
