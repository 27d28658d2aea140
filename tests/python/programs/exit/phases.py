import subprocess

from monarch.actor import Actor, endpoint, this_host

print("b", flush=True)
host = this_host()
print("c", flush=True)
procs = host.spawn_procs(per_host={"gpus": 2})
print("d", flush=True)


class A(Actor):
    def __init__(self):
        subprocess.Popen(["sleep", "1000"])
        print("e", flush=True)

    @endpoint
    def f(self):
        print("f", flush=True)


actors = procs.spawn("a", A)
actors.f.call().get()
print("g", flush=True)
stopping = procs.stop()
print("h", flush=True)
stopping.get()
print("i", flush=True)
print("j", flush=True)
