import os
import subprocess
import sys

from monarch.actor import Actor, endpoint, this_host


class Many(Actor):
    @endpoint
    def print(self):
        import ctypes

        print("Python", "pieces")
        os.write(1, b"a system call\n")
        subprocess.run(["echo", "a process"])
        ctypes.CDLL(None).printf(b"C\n")
        if os.fork() == 0:
            print("a fork", flush=True)
            os._exit(0)
        os.wait()
        print("C without an end of its line", end="")
        sys.stdout.flush()
        ctypes.CDLL(None).printf(b", and more of it")


this_host().spawn_procs().spawn("many", Many).print.call_one().get()
