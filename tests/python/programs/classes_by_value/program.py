from monarch.actor import Actor, endpoint, this_host


def helper():
    return "old"


class A(Actor):
    label = "first"
    seen = 0

    @endpoint
    def look(self):
        type(self).seen += 1
        return id(type(self).look), type(self).label, helper(), type(self).seen


procs = this_host().spawn_procs()


def look(where=procs):
    return where.spawn("a", A).look.call_one().get()
