import gc  # noqa: F401 (what follows in the tests uses it)
import os

import numpy as np  # noqa: F401 (what follows in the tests uses it)

from monarch.actor import Actor, endpoint


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def held():
    "the memory behind the arenas that this process knows"
    return sum(
        os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        for fd in os.listdir("/proc/self/fd")
        if "monarch-arena" in os.path.realpath(f"/proc/self/fd/{fd}")
    )


class Child:
    "a process that looks at what it has when it is told to"

    def __init__(self, array, value):
        go, self.go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.go)
            os.read(go, 1)
            os._exit(int((array != value).any()))
        os.close(go)

    def wrong(self):
        os.write(self.go, b"x")
        os.close(self.go)
        return status_of(self.pid)


class Keeper(Actor):
    @endpoint
    def fork(self, array, value):
        self.child = Child(array, value)

    @endpoint
    def take(self, array):
        return array

    @endpoint
    def wrong(self):
        return self.child.wrong()

    @endpoint
    def write_in_child(self, array):
        if (pid := os.fork()) == 0:
            array *= 7
            os._exit(int((array != 7).any()))
        return status_of(pid) or int((array != 1).any())
