from monarch.actor import Actor, endpoint, this_host

count = 0


def bump():
    global count
    count += 1


class A(Actor):
    def __init__(self, function):
        function()

    @endpoint
    def count(self):
        return count


assert this_host().spawn_procs().spawn("a", A, bump).count.call_one().get() == 1
