import os
import subprocess
import sys

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Look(Actor):
    @endpoint
    def env(self, *names):
        return [os.environ.get(name) for name in names]

    @endpoint
    def whole_env(self):
        return dict(os.environ)

    @endpoint
    def parent(self):
        return os.getppid()

    @endpoint
    def options(self):
        return sys._xoptions

    @endpoint
    def start_sleeper(self):
        return subprocess.Popen(["sleep", "1000"]).pid

    @endpoint
    def first_argument(self):
        with open("/proc/self/cmdline") as file:
            return file.read().split(chr(0))[0]

    @endpoint
    def cpus(self):
        return sorted(os.sched_getaffinity(0))

    @endpoint
    def threads_cpus(self):
        return sorted({cpu for thread in os.listdir("/proc/self/task") for cpu in os.sched_getaffinity(int(thread))})

    @endpoint
    def nested(self, method, *args, host=None):
        look = (host or this_host()).spawn_procs().spawn("look", Look)
        return getattr(look, method).call_one(*args).get()


def values(future):
    return future.get(timeout=60).values()


def fails(call, *texts):
    try:
        call()
    except SupervisionError as error:
        for text in texts:
            assert text in str(error), (text, str(error))
        return
    raise AssertionError("no error")


def rejected(kind, text, **how):
    try:
        this_host().spawn_procs({"gpus": 2}, **how)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError("no error")
