import os
import sys

from monarch.actor import Actor, endpoint, this_host


class Looking(Actor):
    @endpoint
    def look(self):
        umask = os.umask(0)
        os.umask(umask)
        with open(f"/proc/{os.getpid()}/environ") as file:
            born_with = dict(e.partition("=")[::2] for e in file.read().split(chr(0)) if e)
        return {
            "env": dict(os.environ),
            "path": sys.path,
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "umask": umask,
            "born with": born_with,
            "session": os.getsid(0) == os.getpid(),
            "stdin": sys.stdin.read(),
        }


def look():
    return this_host().spawn_procs().spawn("looking", Looking).look.call_one().get()
