import os
import resource

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Loop(Actor):
    @endpoint
    async def get(self):
        return 1


class Limit(Actor):
    @endpoint
    def descriptors(self, count):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))  # a soft limit alone would be raised
        return max(map(int, os.listdir("/proc/self/fd")))


procs = this_host().spawn_procs()
limit = procs.spawn("limit", Limit)
used = limit.descriptors.call_one(1024).get()
limit.descriptors.call_one(used).get()
try:
    procs.spawn("loop", Loop).get.call_one().get()
except SupervisionError as error:
    assert "Too many open files" in str(error) or "out of file descriptors" in str(error), error
else:
    raise AssertionError("it got its descriptors")
assert this_host().spawn_procs().spawn("loop", Loop).get.call_one().get() == 1
