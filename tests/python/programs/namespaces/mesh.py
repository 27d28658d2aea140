"""Two actors on each of the hosts that are named; failures are kept in ``faults``."""

import os  # noqa: F401 (this and more: for what follows in the tests)
import sys
import time  # noqa: F401

from worker import Worker

import monarch.actor
from monarch.actor import Channel, MeshFailure, SupervisionError, attach_to_workers  # noqa: F401

faults: list[MeshFailure] = []
monarch.actor.unhandled_fault_hook = lambda failure: faults.append(failure)
hosts = attach_to_workers(workers=sys.argv[1:], name="machines")
procs = hosts.spawn_procs({"gpus": 2}, name="procs")
workers = procs.spawn("workers", Worker)
places = workers.where.call().get(timeout=30).values()
on = [workers.slice(hosts=number) for number in range(len(sys.argv) - 1)]


def error_of(future):
    error = future.exception(timeout=20)
    assert isinstance(error, SupervisionError), error
    return str(error)


def crashed(mesh):
    """Its ranks that the script was told of, in that order."""
    return [rank for fault in faults if fault.mesh_name == mesh for rank in fault.crashed_ranks]


def tell(word):
    """Says that something is the case, and waits until the test has done what it does then."""
    print(word, flush=True)
    sys.stdin.readline()
