"""What a script holds: all of it must be back to what it was when a storm is over."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from dataclasses import dataclass, fields

from verdict import Wrong

from monarch import _core

SETTLES_WITHIN = 10.0
ROOM = {"threads": 4, "descriptors": 8, "mappings": 12}  # for pools, and what is made when it is needed first
KIB_A_ROUND, KIB = 16, 8 << 10  # a host keeps a word about each of its dead


@dataclass
class Census:
    """Counts, and private memory in KiB."""

    processes: int
    descriptors: int
    threads: int
    mappings: int  # of shared memory
    files: int  # in /dev/shm
    futures: int  # that have not been looked at
    memory: int


def take() -> Census:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/maps") as maps:
        mappings = len(re.findall(r"memfd:|/dev/shm", maps.read()))
    with open("/proc/self/smaps_rollup") as rollup:
        memory = next(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty"))
    return Census(
        processes=len(descendants(os.getpid())),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        mappings=mappings,
        files=len(os.listdir("/dev/shm")),
        futures=len(_core.unseen()),
        memory=memory,
    )


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                children.setdefault(int(stat.read().rpartition(")")[2].split()[1]), []).append(int(entry))
        except (FileNotFoundError, ProcessLookupError):
            pass
    found, left = [], [pid]
    while left:
        found += (below := children.get(left.pop(), []))
        left += below
    return found


def check(before: Census, rounds: int) -> Census:
    """Waits until there is no more than before, as far as that comes by itself."""
    deadline = time.monotonic() + SETTLES_WITHIN
    while leaks := find_leaks(before, now := take(), rounds):
        if time.monotonic() > deadline:
            raise Wrong(f"left after {rounds} rounds: {', '.join(leaks)}\n  before {before}\n  after  {now}")
        time.sleep(0.1)
    return now


def find_leaks(before: Census, now: Census, rounds: int) -> list[str]:
    room = {**ROOM, "memory": KIB + KIB_A_ROUND * rounds}
    counts = [(each.name, getattr(before, each.name), getattr(now, each.name)) for each in fields(Census)]
    return [f"{name} {was} -> {now}" for name, was, now in counts if now > was + room.get(name, 0)]
