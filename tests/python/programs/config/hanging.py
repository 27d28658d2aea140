import asyncio
import threading
import time

from monarch.actor import Actor, endpoint, this_host
from monarch.config import configure  # noqa: F401 (what follows in the tests uses it)


class Sync(Actor):
    @endpoint
    def ready(self):
        pass

    def __cleanup__(self, error):
        print("cleaning up")
        threading.Event().wait()


class Async(Actor):
    @endpoint
    async def ready(self):
        pass

    async def __cleanup__(self, error):
        start = time.monotonic()
        try:
            await asyncio.Event().wait()
        finally:
            print("cancelled after", time.monotonic() - start)


def time_to_stop(Class):
    procs = this_host().spawn_procs()
    procs.spawn("a", Class).ready.call_one().get()
    start = time.monotonic()
    procs.stop().get()
    return time.monotonic() - start
