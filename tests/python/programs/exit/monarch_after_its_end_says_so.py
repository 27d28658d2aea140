import atexit
import threading

from monarch.actor import Actor, endpoint, this_host


def late():
    for use in (lambda: actor.f.call_one().get(), lambda: this_host().spawn_procs(), lambda: future.get(), procs.stop):
        try:
            use()
            print("no error")
        except RuntimeError as error:
            print("ended" in str(error) or error)


atexit.register(late)


class A(Actor):
    @endpoint
    def f(self):
        return 1

    @endpoint
    def forever(self):
        threading.Event().wait()


procs = this_host().spawn_procs()
actor = procs.spawn("a", A)
actor.f.call_one().get()
future = actor.forever.call_one()
