import os
import resource
import subprocess
import time

from monarch.actor import Actor, SupervisionError, endpoint


def limit_descriptors(soft, hard=None):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard or resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Pids(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def ask(self, other):
        return other.pid.call_one().get()

    @endpoint
    def soft_limit(self):
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @endpoint
    def soft_limit_of_a_program(self):
        return int(subprocess.run(["sh", "-c", "ulimit -Sn"], capture_output=True, text=True).stdout)

    @endpoint
    def leave(self, **options):
        return subprocess.Popen(["sleep", "1000"], **options).pid


def children(pid):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    name, fields = stat.read().rsplit(") ", 1)
            except OSError:
                continue
            if int(fields.split()[1]) == pid:
                found.append((int(entry), name.split("(", 1)[1]))
    return found


def guard():
    return next(pid for pid, name in children(os.getpid()) if name == "monarch-guard")


def fork_server():
    return next(pid for pid, name in children(os.getpid()) if name != "monarch-guard")


def failure(call, limit=10.0):
    start = time.monotonic()
    try:
        call.get(timeout=limit)
    except SupervisionError as error:
        return str(error), time.monotonic() - start
    raise AssertionError("no error")
