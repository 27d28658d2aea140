import os
import signal

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class A(Actor):
    @endpoint
    def ppid(self):
        return os.getppid()


actor = this_host().spawn_procs().spawn("a", A)
server = actor.ppid.call_one().get()
os.kill(server, signal.SIGKILL)
try:
    while True:
        actor.ppid.call_one().get()
except SupervisionError:
    print("lost", flush=True)
again = this_host().spawn_procs().spawn("a", A).ppid.call_one().get()
assert again not in (server, os.getpid())
