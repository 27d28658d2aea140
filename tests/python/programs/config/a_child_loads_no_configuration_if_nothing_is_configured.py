import sys

import monarch
from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    @endpoint
    def modules(self):
        return [name for name in sys.modules if name in ("monarch._config.settings", "monarch._config.keys")]


def spawn():
    return this_host().spawn_procs().spawn("a", A)


monarch.configure()
assert spawn().modules.call_one().get() == []
monarch.configure(cleanup_timeout="1s")
assert "monarch._config.settings" in spawn().modules.call_one().get()
