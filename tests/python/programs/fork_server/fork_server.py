import os
import sys

from monarch import _core
from monarch._programs import (
    fork_server,
    worker,  # noqa: F401 (what follows in the tests uses it)
)


class Server:
    events: list = []
    asked = iter([True, False, False, True, False])  # then always

    def __init__(self, socket):
        pass

    def ready(self):
        pass

    def spawned(self, node, pid):
        pass

    def has_request(self, limit_ms):
        if limit_ms < 0:  # before its first look at whether it is stale
            return True
        self.events.append(limit_ms)
        return next(self.asked, True)

    def reap(self):
        if os.waitpid(-1, os.WNOHANG)[0]:
            self.events.append("reaped")

    def next(self):
        if next(requests, None):
            return 1, []
        print(self.events, flush=True)


requests = iter(range(1, 3))
_core.ForkServer = Server
fork_server._LATER = ("first", "second")  # type: ignore[assignment]
sys.path.insert(0, os.getcwd())
