import os
import threading

from monarch.actor import Actor, endpoint, this_host, this_proc


class A(Actor):
    @endpoint
    def f(self):
        return 1

    @endpoint
    def fork(self, use_monarch):
        pid = os.fork()
        if pid == 0:
            child(use_monarch, [])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def child(use_monarch, uses):
    if not use_monarch:
        os._exit(7)
    for use in [*uses, lambda: this_host().spawn_procs(), lambda: this_proc().spawn("a", A)]:
        try:
            use()
            os._exit(1)
        except RuntimeError as error:
            if "os.fork()" not in str(error):
                print(error, flush=True)
                os._exit(2)
    os._exit(7)


class Waiting(Actor):
    @endpoint
    def wait(self):
        threading.Event().wait()


procs = this_host().spawn_procs(per_host={"gpus": 2})
actors = procs.spawn("a", A)
pending = procs.spawn("waiting", Waiting).wait.call()
actors.f.call().get()
