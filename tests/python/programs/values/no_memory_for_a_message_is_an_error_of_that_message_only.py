import os
import resource

import numpy as np

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Echo(Actor):
    @endpoint
    def length(self, array):
        return len(array)

    @endpoint
    def full(self, size):
        return np.ones(size, np.uint8)


echo = this_host().spawn_procs().spawn("echo", Echo)
size = 256 << 20
array = np.ones(size, np.uint8)
assert echo.full.call_one(1 << 20).get().sum() == 1 << 20
assert echo.length.call_one(array[: 1 << 20]).get(timeout=20) == 1 << 20
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), hard))
outcomes = []
uses = (lambda: echo.length.call_one(array), lambda: echo.full.call_one(size), lambda: echo.length.broadcast(array))
for use in uses:
    try:
        answer = use()
        outcomes.append("sent" if answer is None else str(answer.get(timeout=20) is not None))
    except (MemoryError, SupervisionError) as error:
        outcomes.append(str(error))
    assert echo.length.call_one(b"small").get(timeout=20) == 5
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
if os.environ.get("MONARCH_TRANSPORT") == "unix":
    assert "no memory to send a message of 268435" in outcomes[0], outcomes
    assert "there was no room for a message of 26843" in outcomes[1], outcomes
    assert "no memory to send a message of 268435" in outcomes[2], outcomes
assert echo.length.call_one(array).get(timeout=20) == size
assert len(echo.full.call_one(size).get(timeout=20)) == size
