"""Leaves a block whose workers are busy: block_ends.py KIND. Says "busy" for each, and how many are left in the end."""

import asyncio
import contextlib
import ctypes
import os
import sys

from monarch.actor import Actor, endpoint, hosts_from_config, this_host
from monarch.testing import local_procs


class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def work(self):
        print("busy", flush=True)
        ctypes.PyDLL(None).sleep(1000)  # keeps the GIL: nothing but SIGKILL ends it

    @endpoint
    def work_locally(self):
        print("busy", flush=True)
        ctypes.CDLL(None).sleep(1000)


pids: list[int] = []


def spawn(host, name):
    procs = host.spawn_procs(per_host={"gpus": 2}, name=name)
    workers = procs.spawn("worker", Worker)
    pids.extend(workers.pid.call().get().values())
    return procs, workers


def block():
    procs, workers = spawn(this_host(), "trainers")
    with procs:
        workers.slice(gpus=1).work.call().get()


async def async_block():
    procs, workers = await asyncio.to_thread(spawn, this_host(), "trainers")
    async with procs:
        await workers.slice(gpus=1).work.call()


def block_of_a_host():
    with this_host() as host:
        _, workers = spawn(host, "trainers")
        workers.slice(gpus=1).work.call().get()


def block_of_hosts():
    with hosts_from_config("hosts") as hosts:
        _, workers = spawn(hosts, "trainers")
        workers.slice(gpus=1).work.call().get()


def nested_blocks():
    outer, inner = spawn(this_host(), "outer"), spawn(this_host(), "inner")
    with outer[0], inner[0]:
        outer[1].work.broadcast()
        inner[1].work.call().get()


def block_with_an_error():
    procs, workers = spawn(this_host(), "trainers")
    with procs:
        workers.slice(gpus=1).work.broadcast()
        sys.stdin.readline()
        raise ValueError("mine")


def block_of_idle_workers():
    procs, _ = spawn(this_host(), "trainers")
    with procs:
        raise ValueError("mine")


def block_that_is_over():
    procs, workers = spawn(this_host(), "trainers")
    with procs:
        workers.slice(gpus=1).work.broadcast()
        sys.stdin.readline()


async def async_block_that_is_over():
    procs, workers = await asyncio.to_thread(spawn, this_host(), "trainers")
    async with procs:
        workers.slice(gpus=1).work.broadcast()
        sys.stdin.readline()


def local_block():
    with local_procs({"gpus": 2}, name="trainers") as procs:
        procs.spawn("worker", Worker).slice(gpus=1).work_locally.call().get()


kind = globals()[sys.argv[1]]
try:
    asyncio.run(kind()) if asyncio.iscoroutinefunction(kind) else kind()
finally:
    left = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            left += 1
    print("left:", left, flush=True)
