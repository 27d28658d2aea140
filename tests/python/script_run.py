"""A script in a process of its own, and what it leaves behind. Waits for events (lines, ends), each with a deadline."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

MARK = "MONARCH_TEST_MARK"
PROGRAMS = Path(__file__).parent / "programs"
unfinished: list[Run] = []  # begun, and not done: conftest.py ends them with their test
WAYS = {
    "fork": {},
    "exec": {"MONARCH_SPAWN": "exec"},
    "unix": {"MONARCH_TRANSPORT": "unix"},
}
# A printed line is one write: unbuffered (-u, so that no output waits), the line of another process could come into it.
PROLOGUE = """
import asyncio, os, signal, subprocess, sys, threading, time
from monarch.actor import *
sys.stdout.reconfigure(line_buffering=True, write_through=False)
"""


def program(name: str) -> str:
    """The text of a file in programs/: a whole script for Run, or one that a few lines are added to."""
    return (PROGRAMS / name).read_text()


SPEAKER = re.compile(r"^\[[^\]\n]*\] ", re.MULTILINE)  # who says it: before each line of a worker


def marked(mark: str) -> list[int]:
    """Live processes with the mark in their environment, or their arguments: the guard has no environment."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _has_mark(entry, mark)]


def _has_mark(pid: str, mark: str) -> bool:
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            if mark.encode() in file.read():
                return True
    return False


def describe(pid: int) -> str:
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return f"process {pid} ({cmdline.read().replace(bytes(1), b' ').decode()[:100].strip()})"
    return f"process {pid}"


def ended(pid: int, deadline: float) -> bool:
    """Whether a process ends before the deadline (time.monotonic())."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(pidfd)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Run:
    """One run. ``out`` is what it and its processes have printed so far, ``err`` (once done) what went to stderr."""

    def __init__(
        self, source: str | Path | None = None, *, argv: list[str] | None = None, args: tuple[str, ...] = (),
        way: str = "fork", stdin: str | None = None, prologue: str = PROLOGUE, env: dict[str, str] | None = None,
        cwd: str | None = None, terminal: bool = False, inside: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``terminal``: it has one of its own, as stdin and stdout, that ``hang_up()`` closes.

        ``inside``: what its command comes behind, a program that becomes it.
        """
        self.mark = uuid.uuid4().hex[:16]  # short: also a part of paths, and those of sockets have a limit
        self._folder = tempfile.TemporaryDirectory(prefix=f"monarch-test-{self.mark}-")
        folder = Path(self._folder.name)
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        if isinstance(source, Path):  # as it stands and where it is, without the prologue
            argv = [str(source), *args]
        elif argv is None:
            (folder / "script.py").write_text(prologue + (source or ""))
            argv = [str(folder / "script.py"), *args]
        unfinished.append(self)
        self._shm_before = set(os.listdir("/dev/shm"))
        self._err = open(folder / "err", "w")
        self.out = ""
        self.status: int | None = None
        self.started = time.monotonic()
        read_end, write_end = os.openpty() if terminal else os.pipe()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")}
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-u", *argv],
            env={**inherited, "TMPDIR": str(self.tmp), "XDG_RUNTIME_DIR": str(self.tmp), MARK: self.mark,
                 **WAYS[way], **(env or {})},
            stdin=write_end if terminal else subprocess.PIPE, stdout=write_end, stderr=self._err,
            start_new_session=True, cwd=cwd, preexec_fn=_take_terminal if terminal else None,
        )  # fmt: skip
        os.close(write_end)
        self._pipe = read_end
        if stdin is not None:
            self.tell(stdin)
            self.process.stdin.close()

    def _read(self, deadline: float) -> bytes:
        """More output; empty when everybody who could print has ended."""
        if not select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"no output in time; so far {self.out!r}, stderr {self._stderr()!r}")
        try:
            data = os.read(self._pipe, 65536)
        except OSError as error:  # a terminal that nobody holds any more
            if error.errno != errno.EIO:
                raise
            return b""
        self.out += data.decode()
        return data

    def line(self, start: str, limit: float = 30.0) -> str:
        """Waits for the line, of the script or of a worker, that begins with ``start``; returns the rest of it."""
        deadline = time.monotonic() + limit
        while True:
            for line in SPEAKER.sub("", self.out).splitlines(keepends=True):
                if line.startswith(start) and line.endswith("\n"):
                    return line[len(start) :].strip()
            if not self._read(deadline):
                raise EOFError(f"no line {start!r} in {self.out!r}, stderr {self._stderr()!r}")

    def err_line(self, limit: float, text: str = "") -> str:
        """Waits until a whole line, and ``text``, stands on stderr, and returns all of it.

        That is a file, so that nobody holds up its end: it is looked at now and then.
        """
        pidfd = os.pidfd_open(self.process.pid)
        try:
            deadline = time.monotonic() + limit
            has_ended = False
            while True:
                err = self._stderr()
                if err.endswith("\n") and text in err:
                    return err
                assert not has_ended and time.monotonic() < deadline, f"no line with {text!r}, but {err!r}"
                has_ended = bool(select.select([pidfd], [], [], 0.02)[0])
        finally:
            os.close(pidfd)

    def tell(self, text: str) -> None:
        """Writes to its stdin, which is a pipe."""
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the script's whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def hang_up(self) -> None:
        """Closes its terminal. What it prints from here on is nobody's."""
        while select.select([self._pipe], [], [], 0)[0] and self._read(0):
            pass
        os.close(self._pipe)
        self._pipe, write_end = os.pipe()
        os.close(write_end)

    def done(self, limit: float = 30.0) -> Run:
        """Waits for the script's end, then checks that nothing of it is left within 2 s."""
        unfinished.remove(self)
        try:
            self._read_until_it_ends(time.monotonic() + limit) or self._give_up(f"no end within {limit} s")
            self.status = self.process.wait()
            self.seconds = time.monotonic() - self.started
            deadline = time.monotonic() + 2.0
            try:
                while self._read(deadline):  # until nobody holds the pipe, the guard included
                    pass
            except TimeoutError:
                self._give_up("somebody still holds its stdout")
            while left := marked(self.mark):
                # Of what a debugger holds nobody is told the end; but it has no mark any more.
                if not all(ended(pid, deadline) for pid in left) and (left := marked(self.mark)):
                    self._give_up("left behind " + ", ".join(map(describe, left)))
            files = sorted(str(path.relative_to(self.tmp)) for path in self.tmp.rglob("*"))
            assert files == [], f"left in the temporary folder: {files}"
            # Others on this machine may use /dev/shm too, for a moment, and multiprocessing in another test for long.
            before = self._shm_before
            while left := [n for n in os.listdir("/dev/shm") if n not in before and not n.startswith("sem.mp-")]:
                assert time.monotonic() < deadline, f"left in /dev/shm: {left}"
                select.select([], [], [], 0.02)
            self.err = self._stderr()
        finally:
            if self.process.stdin:
                self.process.stdin.close()
            os.close(self._pipe)
            self._err.close()
            self._folder.cleanup()
        return self

    def _read_until_it_ends(self, deadline: float) -> bool:
        pidfd = os.pidfd_open(self.process.pid)
        try:
            while time.monotonic() < deadline:
                ready = select.select([pidfd, self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]
                if pidfd in ready or (ready and not self._read(deadline)):
                    return ended(self.process.pid, deadline)
            return False
        finally:
            os.close(pidfd)

    def said(self) -> str:
        """What has gone to stderr so far."""
        return Path(self._err.name).read_text()

    def ok(self, limit: float = 30.0, lost: str = "", silent: bool = False) -> Run:
        """As done(), for a script that must end well and say nothing on stderr.

        But, if there is an endpoint ``lost``, that calls of it have not been answered, or broadcasts not handled; if
        hosts are ``silent``, that they have said nothing.
        """
        self.done(limit)
        if silent:
            self.err = re.sub("monarch: .* (has said nothing for|says something again, after) .*\n", "", self.err)
        if lost:
            calls, broadcasts = r"(?:a call|\d+ calls) of", r"(?:a broadcast|\d+ broadcasts) to"
            said = rf"monarch: the script has ended before (?:{calls}|{broadcasts}) (.*) w\w+ (answered|handled)\n"
            assert [found[1] for found in re.finditer(said, self.err)] == [lost], self.err
            self.err = re.sub(said, "", self.err)
        assert (self.status, self.err) == (0, ""), f"status {self.status}, out {self.out!r}, err:\n{self.err}"
        return self

    def _stderr(self) -> str:
        with open(self._err.name, errors="replace") as file:
            return file.read()

    def end_all(self) -> None:
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _give_up(self, why: str) -> None:
        left = [describe(pid) for pid in marked(self.mark)]
        self.end_all()
        raise AssertionError(f"{why}; alive: {left}; out {self.out!r}, err {self._stderr()!r}")
