"""What the core knows of a failure (``wire/failure.h``), and what of that are attributes of those who tell of it."""

from __future__ import annotations

import _signal
from enum import IntEnum
from typing import Any, NamedTuple


class OutOfMemory(IntEnum):
    """Of a process that SIGKILL has ended (``OutOfMemory`` in ``wire/failure.h``)."""

    UNKNOWN = 0
    NO = 1
    MACHINE = 2
    CGROUP = 3
    CGROUP_LIMIT = 4


_OF_CGROUP = (OutOfMemory.CGROUP, OutOfMemory.CGROUP_LIMIT)


class FailureRecord(NamedTuple):
    kind: int
    pid: int | None
    host: str
    exit_code: int | None
    signal: int | None
    rank: int | None
    mesh: str
    coordinates: tuple[int, ...]
    out_of_memory: int
    in_flight: tuple[str, ...]
    stack: str
    last_lines: str

    def how_it_ended(self) -> str:
        """In a few words; empty where no process has ended."""
        if self.signal is not None:
            perhaps = {OutOfMemory.MACHINE: ", perhaps out of memory"}
            perhaps |= dict.fromkeys(_OF_CGROUP, ", probably out of memory")
            return f"killed by signal {self.signal}{perhaps.get(OutOfMemory(self.out_of_memory), '')}"
        return "" if self.exit_code is None else f"exited with code {self.exit_code}"


class Recorded:
    """Has the attributes of a record. What is not known is None, or empty."""

    pid: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool | None = None
    in_flight: tuple[str, ...] = ()
    stack: str | None = None
    last_lines: tuple[str, ...] = ()

    def _take(self, record: FailureRecord) -> None:
        self.pid, self.host = record.pid, record.host or None
        self.exit_code, self.signal = record.exit_code, record.signal
        if record.signal == _signal.SIGKILL and record.out_of_memory in (OutOfMemory.NO, *_OF_CGROUP):
            self.out_of_memory = record.out_of_memory != OutOfMemory.NO
        self.in_flight, self.stack = record.in_flight, record.stack or None
        self.last_lines = tuple(record.last_lines.split("\n")) if record.last_lines else ()


def record_of(told: tuple[Any, ...] | None) -> FailureRecord | None:
    return None if told is None else FailureRecord(*told)
