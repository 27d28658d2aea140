import os
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


def agent_of(actor):  # the fork server of its host is its parent, and a child of the host
    with open(f"/proc/{actor.parent.call_one().get()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


hosts = hosts_from_config("stand_in")
