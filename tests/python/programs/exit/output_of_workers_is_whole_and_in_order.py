import sys

from monarch.actor import Actor, endpoint, this_host


class Printer(Actor):
    @endpoint
    def lines(self):
        for i in range(1000):
            print("line", i)

    @endpoint
    def half(self):
        print("half", end="")
        sys.stderr.write("")


printer = this_host().spawn_procs().spawn("p", Printer)
printer.lines.call_one().get()
printer.half.call_one().get()
