from monarch.actor import Actor, SupervisionError, endpoint, this_host


class A(Actor):
    def __init__(self):
        self.calls = 0

    @endpoint
    def count(self):
        self.calls += 1
        return self.calls

    def __cleanup__(self, error):
        print("cleaned up after", self.calls, error)


procs = this_host().spawn_procs(per_host={"gpus": 2})
a = procs.spawn("a", A)


def stopped(call, reason):
    try:
        call()
    except SupervisionError as error:
        assert f"stopped: {reason}" in str(error), error
        return
    raise AssertionError("no error")


def refused(call):
    try:
        call()
    except RuntimeError as error:
        assert "`ProcMesh` has already been stopped" in str(error)
        return
    raise AssertionError("no error")
