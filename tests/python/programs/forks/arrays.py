import gc
import os

import numpy as np

from monarch.actor import Actor, endpoint, this_host


class Keeper(Actor):
    @endpoint
    def keep(self, array):
        self.array = array

    def fork(self):
        return os.fork()

    @endpoint
    def fork_and_drop(self, done, go_on):
        if (pid := self.fork()) == 0:
            del self.array
            gc.collect()
            os._exit(0)
        assert status_of(pid) == 0
        os.close(os.open(done, os.O_WRONLY))
        os.close(os.open(go_on, os.O_RDONLY))

    @endpoint
    def take(self, array):
        assert (array == array[0]).all()
        return array[:1]

    @endpoint
    def is_all(self, value):
        return bool((self.array == value).all())


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check(size, cls):
    "the child drops 1s; then the script looks at what it could have written, and sends other numbers"
    keeper = this_host().spawn_procs().spawn("keeper", cls)
    other = this_host().spawn_procs().spawn("other", cls)
    keeper.keep.call_one(np.ones(size, np.uint8)).get()
    pipes = [os.environ["TMPDIR"] + "/" + name for name in ("done", "go_on")]
    for pipe in pipes:
        os.mkfifo(pipe)
    dropped = keeper.fork_and_drop.call_one(*pipes)
    os.close(os.open(pipes[0], os.O_RDONLY))
    for _ in range(10):
        other.take.call_one(np.ones(10)).get()
    os.close(os.open(pipes[1], os.O_WRONLY))
    dropped.get(timeout=20)
    for value in range(2, 40):
        keeper.take.call_one(np.full(size, value, np.uint8)).get(timeout=20)
    assert keeper.is_all.call_one(1).get(timeout=20)
    for pipe in pipes:
        os.remove(pipe)
    return keeper
