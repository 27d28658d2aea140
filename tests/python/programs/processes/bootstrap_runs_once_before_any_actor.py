import asyncio
import sys

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    def __init__(self):
        self.seen = sys.bootstrapped  # type: ignore[attr-defined]

    @endpoint
    def f(self):
        return self.seen


def bootstrap():
    sys.bootstrapped = getattr(sys, "bootstrapped", 0) + 1  # type: ignore[attr-defined]


async def async_bootstrap():
    await asyncio.sleep(0)
    bootstrap()


for function in (bootstrap, async_bootstrap):
    procs = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=function)
    assert list(procs.spawn("a", A).f.call().get().values()) == [1, 1]
    assert list(procs.spawn("b", A).f.call().get().values()) == [1, 1]
    procs.initialized.get()
