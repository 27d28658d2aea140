import os
import sys

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    @endpoint
    def terminal(self):
        return sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), os.isatty(1)

    @endpoint
    def say(self):
        print("on the terminal")


terminal, slave = os.openpty()
for fd in range(3):
    os.dup2(slave, fd)
a = this_host().spawn_procs().spawn("a", A)
assert a.terminal.call_one().get() == (False, False, False, False)
a.say.call_one().get()
assert os.read(terminal, 1000) == b"[procs] on the terminal\r\n"
