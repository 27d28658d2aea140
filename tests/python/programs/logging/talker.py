import os
import signal
import sys

from monarch.actor import Actor, endpoint, this_host


class Talker(Actor):
    @endpoint
    def say(self, *lines):
        for line in lines:
            print(line)

    @endpoint
    def complain(self, line):
        print(line, file=sys.stderr)

    @endpoint
    def count(self, lines):
        for i in range(lines):
            print("line", i)

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def die(self, last):
        sys.stderr.write(last)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def nest(self, name, *lines):
        self.nested = this_host().spawn_procs(per_host={"n": 2}, name=name).spawn("nested", Talker)
        self.nested.say.call(*lines).get()
        return self.nested


def talkers(count=2, name=None):
    return this_host().spawn_procs(per_host={"gpus": count}, name=name).spawn("talkers", Talker)
