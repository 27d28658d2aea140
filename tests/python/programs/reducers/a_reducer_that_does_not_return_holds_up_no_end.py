import os
import sys
import threading

from monarch.actor import Actor, context, endpoint, this_host

os.environ.update(HYPERACTOR_SPLIT_MAX_BUFFER_SIZE="1000", HYPERACTOR_SPLIT_MAX_BUFFER_AGE="300ms")


class Stuck:
    initial_state = None

    def __call__(self, state, update):
        pass

    def reducer(self, a, b):
        print("stuck")
        threading.Event().wait()


class Owner(Actor):
    @endpoint
    def open(self):
        self.opened = context().actor_instance.mailbox.open_accum_port(Stuck())
        return self.opened[0]


port = this_host().spawn_procs().spawn("owner", Owner).open.call_one().get()
for _ in range(2):
    port.send(None)
sys.stdin.readline()
