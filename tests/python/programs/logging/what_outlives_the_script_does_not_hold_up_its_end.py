import subprocess
import sys

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    @endpoint
    def start(self):
        loop = "while True: print('still here', flush=True)"
        return subprocess.Popen(
            [sys.executable, "-c", loop], start_new_session=True, env={}, stderr=subprocess.DEVNULL
        ).pid

    @endpoint
    def start_quiet(self):
        return subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}).pid


a = this_host().spawn_procs(name="a").spawn("a", A)
print("[pid]", a.start.call_one().get(), a.start_quiet.call_one().get(), flush=True)
