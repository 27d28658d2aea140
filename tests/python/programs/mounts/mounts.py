"""Two hosts with a remote mount, gathered again here. Arguments: source, mount point, where it is gathered.

Then, by what it is told: ends, loses its hosts or what reads its files, or reads when the client does not answer.
"""

import os
import signal
import sys

import monarch.actor
from monarch.actor import Actor, endpoint, hosts_from_config
from monarch.gather_mount import gather_mount
from monarch.remotemount import remotemount

source, at, gathered = sys.argv[1:]
hosts = hosts_from_config("mounts")
mount = remotemount(hosts, source, at)
mount.open()
view = gather_mount(hosts, source, gathered)
print("mounted", *os.listdir(gathered), flush=True)


class Pid(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def kill(procs):
    for pid in procs.spawn("pid", Pid).pid.call().get().values():
        os.kill(pid, signal.SIGKILL)


what = sys.stdin.readline().strip()
if what == "hosts":
    kill(mount._procs[1])
    sys.stdin.readline()
elif what == "source":
    kill(mount._procs[0])
    sys.stdin.readline()
elif what == "blind":
    monarch.actor.unhandled_fault_hook = lambda failure: None
    kill(mount._procs[0])
    try:
        with open(f"{at}/large", "rb") as file:
            file.read(10)
    except OSError as error:
        print("blind", error.errno, flush=True)
    sys.stdin.readline()
