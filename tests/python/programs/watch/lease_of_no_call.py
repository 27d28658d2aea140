"""With a lease (of the environment) a process is stopped for longer; the call that waited for it has ended before."""

import os
import select
import signal

from halting import stop

from monarch.actor import Actor, DeadlineExceeded, endpoint, this_host


class Trainer(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


procs = this_host().spawn_procs(per_host={"gpus": 1}, name="procs")
trainer = procs.spawn("trainer", Trainer)
pid = trainer.pid.call_one().get()
stop(pid)
try:
    trainer.pid.options(deadline=0.8).call_one().get()
except DeadlineExceeded:
    print("its deadline has passed")
print("killed" if select.select([os.pidfd_open(pid)], [], [], 2.0)[0] else "it lives")
os.kill(pid, signal.SIGCONT)
print("answered", trainer.pid.call_one().get(timeout=10) == pid)
procs.stop().get()
