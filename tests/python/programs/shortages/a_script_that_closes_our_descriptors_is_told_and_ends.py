import os
import threading
import time

from monarch.actor import Actor, endpoint, this_host


class Adder(Actor):
    @endpoint
    def add(self, a, b):
        return a + b


procs = this_host().spawn_procs(per_host={"gpus": 2})
adder = procs.spawn("adder", Adder)
assert list(adder.add.call(1, 2).get().values()) == [3, 3]
waiting = adder.add.call(1, 2)
told: list[str] = []
os.closerange(3, 256)


def use():
    for call in (
        lambda: adder.add.call(1, 2).get(timeout=20),
        lambda: procs.stop().get(timeout=20),
        lambda: this_host().spawn_procs().spawn("adder", Adder).add.call(1, 2).get(timeout=20),
    ):
        try:
            call()
        except RuntimeError as error:
            told.append(str(error))


until = time.monotonic() + 20
while not told and time.monotonic() < until:  # who spins at memory that is shared needs no descriptor for an answer
    try:
        adder.add.call(1, 2).get(timeout=20)
    except RuntimeError as error:
        told.append(str(error))
thread = threading.Thread(target=use)
thread.start()
thread.join()
use()
assert len(told) == 7 and all("closed by this program (os.closerange?)" in text for text in told), told
