"""An actor on the last host that takes nothing while `gate` is there; memory of all processes of all hosts."""

import os
import sys
import threading

import numpy

from monarch.actor import Actor, attach_to_workers, endpoint

MIB = 1 << 20
PIECE = numpy.zeros(MIB, "u1")


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def resident(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


class Slow(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def pids(self):
        """Its own, and that of its host, which has started the fork server."""
        return os.getpid(), parent_of(os.getppid())

    @endpoint
    def block(self, path):
        with open(path) as gate:
            gate.read()

    @endpoint
    def take(self, piece):
        self.count += 1

    @endpoint
    def taken(self):
        return self.count


class Sender(Slow):
    @endpoint
    def flood(self, slow, count):
        for _ in range(count):
            slow.take.broadcast(PIECE)


hosts = attach_to_workers(workers=sys.argv[1:])
actors = hosts.spawn_procs(name="procs").spawn("slow", Sender)
slow, first = actors.slice(hosts=len(sys.argv) - 2), actors.slice(hosts=0)
pids = [pid for pair in actors.pids.call().get(timeout=30).values() for pid in pair] + [os.getpid()]
path = os.environ["TMPDIR"] + "/gate"
os.mkfifo(path)
blocking = slow.block.call_one(path)
gate = open(path, "w")  # comes back when the actor has opened it too
os.unlink(path)
before = [resident(pid) for pid in pids]


def grown():
    return [(resident(pid) - had) // MIB for pid, had in zip(pids, before)]


def in_thread(flood):
    thread = threading.Thread(target=flood)
    thread.start()
    return thread
