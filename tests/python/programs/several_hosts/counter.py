import os
import signal
import time

from monarch.actor import Actor, SupervisionError, endpoint, hosts_from_config


class Counter(Actor):
    def __init__(self):
        self.count = 0

    def __supervise__(self, failure):
        return True

    @endpoint
    def add(self):
        self.count += 1

    @endpoint
    def spawn(self, hosts):
        return hosts.spawn_procs().spawn("leaf", Counter)

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def parent(self):
        return os.getppid()

    @endpoint
    def say(self, text):
        print(text, flush=True)

    @endpoint
    def ask(self, other):
        try:
            other.pid.call().get()
        except SupervisionError as error:
            return str(error)

    @endpoint
    def hang(self):
        time.sleep(1000)

    def __cleanup__(self, error):
        print("counted", self.count, flush=True)


def stat_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()


def agent_of(actor):  # the fork server of its host is its parent, and a child of the host
    return int(stat_of(actor.parent.call_one().get())[1])


def stop(pid):  # until one of its threads has taken the signal, the others go on
    os.kill(pid, signal.SIGSTOP)
    while stat_of(pid)[0] != "T":
        time.sleep(0.001)


hosts = hosts_from_config("stand_in")
