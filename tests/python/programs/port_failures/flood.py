import os

import numpy

from monarch.actor import Actor, Channel, endpoint, this_host

PIECE = numpy.zeros(1 << 20, "u1")


class Flooder(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def flood(self, port, count):
        for _ in range(count):
            port.send(PIECE)
        return "sent"

    def _handle_undeliverable_message(self, message):
        return True


def resident(pid="self"):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


procs = this_host().spawn_procs(per_host={"gpus": 2})
flooder = procs.slice(gpus=0).spawn("flooder", Flooder)
pid = flooder.pid.call_one().get()
port, receiver = Channel.open()
