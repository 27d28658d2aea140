import ctypes
import sys

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    @endpoint
    def hold_the_gil(self):
        print("holding", flush=True)
        ctypes.PyDLL(None).sleep(1000)

    @endpoint
    def f(self):
        return 1


procs = this_host().spawn_procs(per_host={"gpus": 2})
actors = procs.spawn("a", A)
actors.f.call().get()
pending = actors.slice(gpus=0).hold_the_gil.call_one()
sys.stdin.readline()
assert actors.slice(gpus=1).f.call_one().get(timeout=5) == 1
