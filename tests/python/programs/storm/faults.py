"""What a storm does to one rank of a mesh of workers, and what everybody may be told of it, and nothing else."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DESCRIPTORS = r"[Tt]oo many open files|out of file descriptors|no descriptor"
MEMORY = r"MemoryError|[Cc]annot allocate memory|no memory|out of memory|can't start new thread|cannot start a thread"
# Code without a way out when there is no memory: C++ that must not throw, and Python's own.
DIES_WITHOUT_MEMORY = r"\(sig=6\)|\(sig=11\)|non-zero code"
PROCESS, ACTOR, SHORTAGE, NOTHING = "process", "actor", "shortage", "nothing"


@dataclass
class Fault:
    """One that has happened to a rank, or is about to. ``ends``: what of it is not there any more afterwards."""

    name: str
    ends: str
    explains: str  # a regular expression, found in each error that it is the reason of

    def is_reason(self, text: str) -> bool:
        return re.search(self.explains, text) is not None


Strike = Callable[[random.Random, Any, int, str], tuple[Fault, Callable[[], object]]]


def signalled(number: int) -> Strike:
    """From outside, as by the kernel or by a person."""

    def strike(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
        is_stopped_first = rng.random() < 0.3  # by a debugger, say

        def act() -> None:
            if is_stopped_first:
                os.kill(pid, signal.SIGSTOP)
            os.kill(pid, number)
            if is_stopped_first:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return died(signal.Signals(number).name, f"\\(sig={number}\\)", pid), act

    return strike


def died(name: str, how: str, pid: int) -> Fault:
    return Fault(name, PROCESS, f"(?:{how}) .*pid {pid}\\)")


def exits(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
    code = rng.choice([0, 1, 3, 255])
    text = f"exited with non-zero code {code}" if code else "exited with code 0 without being asked to"
    return died("os._exit", text, pid), lambda: worker.harm.broadcast("os._exit", code)


def crashes(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
    return died("segmentation fault", r"\(sig=11\)", pid), lambda: worker.harm.broadcast("null pointer", None)


def raises(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
    """Nobody waits for an answer, so the actor fails, and not its process."""
    how = rng.choice(["exception", "SystemExit", "abort"])
    return Fault(how, ACTOR, re.escape(word)), lambda: worker.harm.broadcast(how, word)


def runs_out_of_descriptors(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
    room = rng.randrange(6)

    def act() -> None:
        highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
        limit(pid, resource.RLIMIT_NOFILE, highest + room)

    return Fault("no descriptors", SHORTAGE, DESCRIPTORS), act


def runs_out_of_memory(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
    """No thread gets a stack then, nor a large message its memory."""
    room = rng.randrange(1 << 23)

    def act() -> None:
        with open(f"/proc/{pid}/statm") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        limit(pid, resource.RLIMIT_AS, size + room)

    return Fault("no memory", SHORTAGE, f"{MEMORY}|{DIES_WITHOUT_MEMORY}"), act


def limit(pid: int, what: int, value: int | None) -> None:
    """None: there is no shortage any more."""
    most = resource.prlimit(pid, what)[1]
    resource.prlimit(pid, what, (most if value is None else value, most))


def pass_over(fault: Fault, pid: int) -> None:
    """The end of a fault that has one."""
    with contextlib.suppress(ProcessLookupError):  # it may have died of a shortage
        if fault.ends == NOTHING:
            os.kill(pid, signal.SIGCONT)
        if fault.ends == SHORTAGE:
            limit(pid, resource.RLIMIT_NOFILE, None)
            limit(pid, resource.RLIMIT_AS, None)


def pauses(rng: random.Random, worker: Any, pid: int, word: str) -> tuple[Fault, Callable[[], object]]:
    """Nothing may come of it but time."""
    return Fault("a pause", NOTHING, "(?!)"), lambda: os.kill(pid, signal.SIGSTOP)


LASTING: list[Strike] = [
    *[signalled(signal.SIGKILL)] * 3,
    signalled(signal.SIGSEGV),
    signalled(signal.SIGABRT),
    *[exits] * 3,
    *[crashes] * 2,
    *[raises] * 4,
]
ALL: list[Strike] = [*LASTING, *[runs_out_of_descriptors] * 2, *[runs_out_of_memory] * 2, *[pauses] * 3]


def strike(
    rng: random.Random, worker: Any, pid: int, word: str, note: Callable[[Fault], None], lasting: bool = False
) -> Fault:
    """Harms the one rank that ``worker`` is, after it has noted with what: somebody may be told at once."""
    fault, act = rng.choice(LASTING if lasting else ALL)(rng, worker, pid, word)
    note(fault)
    act()
    if lasting and fault.ends == PROCESS:
        _wait_for_end(pid)
    return fault


def _wait_for_end(pid: int) -> None:
    """Who crashes writes its stacks first, on one thread, and may answer meanwhile on others."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            select.select([pidfd], [], [], 20)
        finally:
            os.close(pidfd)
