"""Two hosts, two actors on each. The script and an actor of the first host wait for the first of the second host."""

import os
import signal
import sys
import time

import monarch.actor
from monarch.actor import Actor, Channel, MeshFailure, SupervisionError, attach_to_workers, endpoint


def stat_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()


def parent_of(pid):
    return int(stat_of(pid)[1])


def stop(pid):  # until one of its threads has taken the signal, the others go on
    os.kill(pid, signal.SIGSTOP)
    while stat_of(pid)[0] != "T":
        time.sleep(0.001)


class Sleeper(Actor):
    @endpoint
    def pids(self):
        """Its own, and that of its host, which has started the fork server."""
        return os.getpid(), parent_of(os.getppid())

    @endpoint
    def sleep(self, begun):
        begun.send(None)
        time.sleep(1000)

    @endpoint
    async def calls(self, other, begun):
        try:
            await other.sleep.call_one(begun)
        except SupervisionError as error:
            return str(error)


faults: list[MeshFailure] = []
monarch.actor.unhandled_fault_hook = lambda failure: faults.append(failure)
hosts = attach_to_workers(workers=sys.argv[1:], name="machines")
procs = hosts.spawn_procs({"gpus": 2}, name="procs")
sleepers = procs.spawn("sleepers", Sleeper)
pids = sleepers.pids.call().get(timeout=30).values()
first, second = sleepers.slice(hosts=0), sleepers.slice(hosts=1)
begun, begins = Channel.open()
pending = second.slice(gpus=0).sleep.call_one(begun)
beside = first.slice(gpus=0).calls.call_one(second.slice(gpus=0), begun)  # another host's actor waits for it too
begins.recv().get(timeout=30)


def error_of(future):
    error = future.exception(timeout=20)
    assert isinstance(error, SupervisionError), error
    return str(error)


def crashed(mesh):
    """Its ranks that the script was told of, in that order."""
    return [rank for fault in faults if fault.mesh_name == mesh for rank in fault.crashed_ranks]
