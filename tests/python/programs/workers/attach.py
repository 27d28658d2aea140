import os
import subprocess
import sys
import time  # noqa: F401 (what follows in the tests uses it)

from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, this_host  # noqa: F401


class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def host(self):
        """The process that is the host of this one."""
        with open(f"/proc/{os.getppid()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    @endpoint
    def orphan(self):
        subprocess.run(["sh", "-c", "true & exec true"], check=True)

    @endpoint
    def on(self, hosts):
        return [this_host() == hosts.slice(hosts=i) for i in range(hosts.size("hosts"))]

    @endpoint
    def say(self, text):
        print(text, flush=True)

    @endpoint
    def add(self, other):
        return sum(other.pid.call().get().values())

    @endpoint
    def nested(self, hosts):
        return hosts.spawn_procs().spawn("nested", Worker)


addresses = sys.argv[1:]
hosts = attach_to_workers(workers=addresses, name="workers")
