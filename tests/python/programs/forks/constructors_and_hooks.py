import os
import time
from typing import Any

from worker import fork, status_of

from monarch.actor import Actor, ActorError, endpoint, this_host


class Construct(Actor):
    def __init__(self, how):
        self.pid = fork(how)
        self.status = status_of(self.pid) if isinstance(self.pid, int) else None

    @endpoint
    def get(self):
        return self.status


class Hook(Actor):
    @endpoint
    def start(self): ...
    def __cleanup__(self, exc):
        pid = fork("exit 3")
        print("cleaned up after", status_of(pid))


class AsyncHook(Actor):
    @endpoint
    async def start(self): ...
    async def __cleanup__(self, exc):
        pid = fork("exit 3")
        print("async, cleaned up after", status_of(pid))


class Bounce(Actor):
    @endpoint
    def send(self, other):
        other.start.broadcast()

    @endpoint
    def get(self):
        return self.status

    def _handle_undeliverable_message(self, message):
        pid = fork("return")
        if isinstance(pid, int):
            self.status = status_of(pid)
        return True


def set_up():
    pid = fork("return")
    if isinstance(pid, int):
        os.environ["CHILD"] = str(status_of(pid))


class SetUp(Actor):
    @endpoint
    def get(self):
        return os.environ["CHILD"]


procs = this_host().spawn_procs(bootstrap=set_up)
assert procs.spawn("setup", SetUp).get.call_one().get(timeout=20) == "0"
for how, status in {"return": 0, "exit 3": 3}.items():
    assert procs.spawn("construct", Construct, how).get.call_one().get(timeout=20) == status
hooks: tuple[type[Actor], ...] = (Hook, AsyncHook)
for cls in hooks:
    hook: Any = procs.spawn("hook", cls)
    hook.start.call_one().get()
    hook.stop().get()
bounce = procs.spawn("bounce", Bounce)
bounce.send.call_one(hook).get()
limit = time.monotonic() + 20
while True:
    try:
        assert bounce.get.call_one().get(timeout=20) == 0
        break
    except ActorError:
        assert time.monotonic() < limit
