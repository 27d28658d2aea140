import asyncio
import os
import sys

import numpy

from monarch.actor import Actor, Channel, endpoint, this_host


class Flooder(Actor):
    @endpoint
    def flood(self, port, count):
        for _ in range(count):
            port.send(PIECE)


class Owner(Actor):
    @endpoint
    async def give_up(self):
        self.port, self.receiver = Channel.open()
        for _ in range(10):
            try:
                await asyncio.wait_for(self.receiver.recv(), 0.001)
            except asyncio.TimeoutError:
                pass
        return self.port

    @endpoint
    def resident(self):
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096


PIECE = numpy.zeros(1 << 20, "u1")
procs = this_host().spawn_procs(per_host={"gpus": 2})
owner, flooder = procs.slice(gpus=0).spawn("owner", Owner), procs.slice(gpus=1).spawn("flooder", Flooder)
port = owner.give_up.call_one().get()
flood = flooder.flood.call_one(port, 1000)
print("flooding")
sys.stdin.readline()  # the sender has said that it waits
resident = owner.resident.call_one().get()
assert resident < 400 << 20, resident
print("bounded")
os._exit(0)
