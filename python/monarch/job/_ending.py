"""Processes that are known by more than a number, which the system gives to another one: found, and ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

JOB_ID = "MONARCH_JOB_ID"  # in the environment of all that a job has started
_ENDED = (b"Z", b"X")  # states, as /proc names them
_EXITING = 0x4  # of a process's flags, as the kernel's linux/sched.h has them (PF_EXITING)
_KILLED = 1 << (signal.SIGKILL - 1)  # of its pending signals: nothing but a processor is missing for its end
_COMMAND_MAX = 80  # characters of a command that are shown


class Process(NamedTuple):
    """One process, for as long as the machine runs."""

    pid: int
    started: int  # clock ticks since the machine began, as /proc says it


class _Entry(NamedTuple):
    process: Process
    parent: int
    session: int
    exiting: bool  # nobody can read its environment any more, or will in a moment


def identify(pid: int) -> Process | None:
    """None: it has ended."""
    entry = _look_at(pid)
    return None if entry is None else entry.process


def is_alive(process: Process) -> bool:
    """Whether it runs; one that has ended and was not reaped does not."""
    return identify(process.pid) == process


def describe(process: Process) -> str:
    """For people, on one line."""
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            command = " ".join(os.fsdecode(file.read()).replace("\0", " ").split())
    except OSError:
        command = ""
    shown = "".join(each if each.isprintable() else "?" for each in command[:_COMMAND_MAX])
    return f"process {process.pid} ({shown or 'another user may not see what it is'})"


def find(mark: str, known: Iterable[Process]) -> dict[Process, int]:
    """What :func:`end_all` would end: each with the id of its parent."""
    parents: dict[int, int] = {}
    return {process: parents[process.pid] for process in _find(mark, known, parents)}


def end_all(mark: str, known: Iterable[Process], grace: float, limit: float) -> list[int]:
    """Ends these, all that have ``mark`` (``NAME=value``) in the environment that they began with, and their children.

    What is ending by itself, in a session that one of these has begun, is waited for as well.

    Those that have no parent among them are asked to, by SIGTERM, and then those that these leave. What is there after
    ``grace`` seconds is killed, and what comes then, until nothing does. Returns the ids of those that have not ended
    ``limit`` seconds later.
    """
    found = set(known)  # children without the mark, too, when their parents have ended
    until = time.monotonic() + grace
    in_time = True
    while in_time:
        with _Held(mark, found) as held:
            found.update(held.fds)
            if not held.fds:
                return []
            roots = held.roots()
            held.signal(signal.SIGTERM, roots)
            in_time = held.wait(roots, until)
    until = time.monotonic() + limit
    while True:
        with _Held(mark, found) as held:
            found.update(held.fds)
            if not held.fds:
                return []
            try:
                held.signal(signal.SIGSTOP, held.fds)  # lest a shell goes on when what it waits for has been killed
            finally:  # also at Ctrl-C: what is stopped ends at nothing else
                held.signal(signal.SIGKILL, held.fds)
            if not held.wait(held.fds, until):
                return sorted(process.pid for process in held.fds if is_alive(process))


class _Held:
    """Those that run now, by descriptors, which never mean another process."""

    def __init__(self, mark: str, known: Iterable[Process]) -> None:
        self.parents: dict[int, int] = {}
        self.fds: dict[Process, int] = {}
        for process in _find(mark, known, self.parents):
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(process.pid)
                self.fds[process] = fd
                # Between the look and the descriptor it may have become another process.
                if not is_alive(process):
                    os.close(self.fds.pop(process))

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self.fds.values():
            os.close(fd)

    def roots(self) -> list[Process]:
        pids = {process.pid for process in self.fds}
        return [process for process in self.fds if self.parents[process.pid] not in pids]

    def signal(self, number: int, processes: Iterable[Process]) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.fds[process], number)

    def wait(self, processes: Collection[Process], until: float) -> bool:
        """Whether these have ended by then (``time.monotonic()``)."""
        waiting = select.poll()
        for process in processes:
            waiting.register(self.fds[process], select.POLLIN)
        left = len(processes)
        while left > 0 and (left_s := until - time.monotonic()) > 0:
            for fd, _ in waiting.poll(max(1, int(left_s * 1000))):
                waiting.unregister(fd)
                left -= 1
        return left == 0


def _find(mark: str, known: Iterable[Process], parents: dict[int, int]) -> set[Process]:
    """All that run but this one; ``parents`` is filled in."""
    entries = {int(name): entry for name in os.listdir("/proc") if name.isdigit() and (entry := _look_at(int(name)))}
    parents.update((pid, entry.parent) for pid, entry in entries.items())
    children: dict[int, list[int]] = {}
    for pid, entry in entries.items():
        children.setdefault(entry.parent, []).append(pid)
    wanted = os.fsencode(mark)
    known = set(known)
    sessions = {process.pid for process in known}

    def is_wanted(pid: int, entry: _Entry) -> bool:
        # The number of a session may be another's by now: no harm is done to who is exiting anyway.
        of_session = entry.exiting and entry.session in sessions
        return entry.process in known or of_session or wanted in _environment(pid)

    stack = [pid for pid, entry in entries.items() if is_wanted(pid, entry)]
    found: set[int] = set()
    while stack:
        if (pid := stack.pop()) not in found and pid != os.getpid():
            found.add(pid)
            stack += children.get(pid, ())
    return {entries[pid].process for pid in found}


def _look_at(pid: int) -> _Entry | None:
    """None: it has ended, or is somebody else's."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return None
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in _ENDED and (int(fields[17]) <= 1 or _all_threads_have_ended(pid)):
        return None
    exiting = bool(int(fields[6]) & _EXITING or int(fields[28]) & _KILLED)
    return _Entry(Process(pid, int(fields[19])), int(fields[1]), int(fields[3]), exiting)


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _all_threads_have_ended(pid: int) -> bool:
    """Of a process whose first thread has; its debugger may keep the others from going."""
    for thread in _threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b") ")[2].split()[0] not in _ENDED:
                    return False
    return True


def _environment(pid: int) -> list[bytes]:
    for thread in [str(pid), *_threads(pid)]:  # its first one may have ended
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/environ", "rb") as file:
            if text := file.read():
                return text.split(b"\0")
    return []  # it has ended, or hides it
