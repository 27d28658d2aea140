import operator
import os
import sys

from monarch.actor import Actor, context, endpoint, shutdown_context, this_host

os.environ.update(HYPERACTOR_SPLIT_MAX_BUFFER_SIZE="1000", HYPERACTOR_SPLIT_MAX_BUFFER_AGE="1h")


class Sum:
    initial_state, reducer = 0, staticmethod(operator.add)

    def __call__(self, state, update):
        return state + update


class Owner(Actor):
    @endpoint
    def open(self):
        port, self.receiver = context().actor_instance.mailbox.open_accum_port(Sum())
        return port

    def __cleanup__(self, exc):
        print("total", self.receiver.recv().get(timeout=0), flush=True)


owner = this_host().spawn_procs().spawn("owner", Owner)
port = owner.open.call_one().get()
for i in range(10):
    port.send(i)
print("sent")
if sys.argv[1] == "shutdown_context":
    shutdown_context(1).get()
