import os
import subprocess

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Mortal(Actor):
    @endpoint
    def start(self):
        return subprocess.Popen(["sleep", "1000"]).pid

    @endpoint
    def die(self):
        os._exit(1)


mortal = this_host().spawn_procs().spawn("mortal", Mortal)
pidfd = os.pidfd_open(mortal.start.call_one().get())
try:
    mortal.die.call_one().get()
except SupervisionError:
    import select

    print("ended", bool(select.select([pidfd], [], [], 2)[0]))
