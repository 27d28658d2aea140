"""What a script holds: all of it must be back to what it was when a storm is over."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, fields

from verdict import Wrong

from monarch import _core

SETTLES_WITHIN = 10.0
ROOM = {"threads": 4, "descriptors": 8, "mappings": 12}  # for pools, and what is made when it is needed first
KIB_A_ROUND, KIB = 16, 8 << 10  # a host keeps a word about each of its dead
ARENA_KIB = 32 << 10


@dataclass
class Census:
    """Counts, and what has been written of this process's own memory and of its arena, in KiB."""

    processes: int
    descriptors: int
    threads: int
    mappings: int  # of shared memory
    files: int  # in /dev/shm
    futures: int  # that have not been looked at
    memory: int
    arena: int  # of large messages: made with the first of them, and pages are kept for the next


def take(apart: Collection[int] = ()) -> Census:
    """Args:
    apart: Processes whose own are counted elsewhere.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps") as smaps:
        written = re.findall(
            r"^[0-9a-f]+-[0-9a-f]+ (.*)\n(?:[A-Z].*\n)*?Private_Dirty: *(\d+)", smaps.read(), re.MULTILINE
        )
    shared = [int(size) for name, size in written if "memfd:" in name or "/dev/shm" in name]
    return Census(
        processes=len(descendants(os.getpid(), apart)),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        mappings=len(shared),
        files=len(os.listdir("/dev/shm")),
        futures=len(_core.unseen()),
        memory=sum(int(size) for _, size in written) - sum(shared),
        arena=sum(shared),
    )


def descendants(pid: int, apart: Collection[int] = ()) -> list[int]:
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
        left += [each for each in below if each not in apart]
    return found


def check(before: Census, rounds: int, apart: Collection[int] = ()) -> Census:
    """Waits until there is no more than before, as far as that comes by itself."""
    deadline = time.monotonic() + SETTLES_WITHIN
    while leaks := find_leaks(before, now := take(apart), rounds):
        if time.monotonic() > deadline:
            raise Wrong(f"left after {rounds} rounds: {', '.join(leaks)}\n  before {before}\n  after  {now}")
        time.sleep(0.1)
    return now


def find_leaks(before: Census, now: Census, rounds: int) -> list[str]:
    room = {**ROOM, "memory": KIB + KIB_A_ROUND * rounds, "arena": ARENA_KIB}
    counts = [(each.name, getattr(before, each.name), getattr(now, each.name)) for each in fields(Census)]
    return [f"{name} {was} -> {now}" for name, was, now in counts if now > was + room.get(name, 0)]
