from monarch.actor import Actor, endpoint, this_host


def helper():
    return "old"


class Cell(Actor):
    @endpoint
    def direct(self):
        return helper()

    @endpoint
    def through_self(self):
        return self.method()

    def method(self):
        return helper()


procs = this_host().spawn_procs()


def results():
    cell = procs.spawn("cell", Cell)
    return cell.direct.call_one().get(), cell.through_self.call_one().get()


assert results() == ("old", "old")
exec("def helper():\n    return 'new'", globals())
assert results() == ("new", "new"), results()
