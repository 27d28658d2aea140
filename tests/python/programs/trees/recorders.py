"""Two recorders on each of the hosts, which know what they were told, in which order, and somebody who tells them."""

import os
import signal
import sys

import numpy

from monarch.actor import Actor, attach_to_workers, current_rank, endpoint


class Recorder(Actor):
    def __init__(self):
        self.told = []

    @endpoint
    def tell(self, number, payload=None):
        if payload is not None:
            assert payload[0] == payload[-1] == number % 256
        self.told.append(number)

    @endpoint
    def heard(self):
        return self.told

    @endpoint
    def pids(self):
        """Its own, and that of its host, which has started the fork server."""
        with open(f"/proc/{os.getppid()}/stat") as stat:
            return os.getpid(), int(stat.read().rpartition(")")[2].split()[1])

    @endpoint
    def score(self, payload, stopped_host=None, its_pid=0):
        """Its rank; the first of that host stops it before it has answered."""
        rank = current_rank()
        if rank["hosts"] == stopped_host and rank["gpus"] == 0:
            os.kill(its_pid, signal.SIGSTOP)
        return rank.rank


class Sender(Actor):
    @endpoint
    def send(self, recorders, first, last):
        send(recorders, first, last)


def payload(number, size):
    return numpy.full(size, number % 256, "u1")


def send(recorders, first, last):
    """Casts, large ones too, and messages to single ranks and hosts between them."""
    count = recorders.extent["hosts"]
    for number in range(first, last):
        if number % 3 == 0:
            recorders.tell.broadcast(number)
        elif number % 3 == 1:
            recorders.slice(hosts=number % count).tell.broadcast(number)
        elif number % 12 == 2:
            recorders.tell.broadcast(number, payload(number, 1 << 20))
        else:
            recorders.tell.call(number).get(timeout=60)


def expected(host, count, first, last):
    return [number for number in range(first, last) if number % 3 != 1 or number % count == host]


def check(recorders, first, last, hosts=None):
    count = recorders.extent["hosts"]
    for host in range(count) if hosts is None else hosts:
        for told in recorders.slice(hosts=host).heard.call().get(timeout=120).values():
            ours = [number for number in told if first <= number < last]
            assert ours == expected(host, count, first, last), (host, ours)


hosts = attach_to_workers(workers=sys.argv[1:])
procs = hosts.spawn_procs(per_host={"gpus": 2}, name="procs")
recorders = procs.spawn("recorders", Recorder)
