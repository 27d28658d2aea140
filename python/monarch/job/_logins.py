"""Commands on other machines, each over a connection of its own (a process of ``ssh``, say), and what they answer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable
from typing import Any

from monarch.job._descriptors import readable
from monarch.job._detached import Detached
from monarch.job._login_there import ANSWER

_LINES_MAX = 24  # of what is told of one host
_HOSTS_MAX = 5  # that something is told of
_BYTES_MAX = 1 << 16  # of what a machine may say in a line, or when its time is over
_END_S = 1.0  # for a connection to end when nothing is left to say


class LoginError(Exception):
    """A host has not done what it was asked to, and why."""


class Login:
    """One command that runs on a host. Starts at once; not for several threads."""

    def __init__(self, host: str, command: list[str], words: bytes = b"") -> None:
        """``words``: what it is told first, at most 4096 bytes. ``RuntimeError`` if it cannot be run here."""
        self.host = host
        self.has_answered = False
        self._program = command[0]
        self._said = b""
        self._late = 0  # bytes that came when its time was over: others were listened to before
        with contextlib.ExitStack() as stack:
            try:
                self._err = stack.enter_context(tempfile.TemporaryFile())
                # In a session of its own: Ctrl-C is for the script, and nothing may ask at its terminal.
                self._process = Detached(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, start_new_session=True
                )
            except OSError as error:
                why = "there is no such program here" if error.errno == errno.ENOENT else error.strerror
                raise RuntimeError(f"cannot run {command[0]!r} for host {host}: {why}") from error
            stack.pop_all()
        _everywhere.add(self)
        self.tell(words)

    def tell(self, words: bytes) -> None:
        """Nothing if it has ended: what it answers says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), words)

    def answer(self, until: float) -> dict[str, Any]:
        """What it says next, by then (``time.monotonic()``). ``LoginError``: why there is nothing."""
        mark = ANSWER.encode()
        while (line := self._line(until)) is not None:
            if line.startswith(mark):
                found = _answer(line.removeprefix(mark))
                if "error" in found:
                    raise LoginError(found["error"])
                self.has_answered = True
                return found
        return_code = self._wait(until)
        ended = "has not ended" if return_code is None else f"has ended with status {return_code}"
        raise LoginError(self._errors() or f"{self._program!r} {ended}, and has said nothing")

    def all(self, until: float) -> str:
        """All that it writes until it ends, by then. ``LoginError``: it has failed."""
        lines = []
        while (line := self._line(until)) is not None:
            lines.append(line.decode(errors="replace"))
        if self._wait(until) != 0:
            raise LoginError(self._errors() or f"{self._program!r} has failed")
        return "\n".join(lines)

    def let_go(self) -> None:
        """Its stdin ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self, until: float) -> None:
        """It ends by then (``time.monotonic()``), or is killed."""
        self.let_go()
        if self._wait(until) is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._err.close()

    def _line(self, until: float) -> bytes | None:
        """None: it has ended its output."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._said:
            if not readable([fd], until - time.monotonic()):
                raise LoginError(f"no answer in time. {self._errors()}".strip())
            if not (piece := os.read(fd, 4096)):
                return None
            self._said += piece
            self._late += len(piece) if time.monotonic() > until else 0
            if max(len(self._said), self._late) > _BYTES_MAX:
                raise LoginError("it says something else than an answer, without an end")
        line, _, self._said = self._said.partition(b"\n")
        return line

    def _wait(self, until: float) -> int | None:
        try:
            return self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def _errors(self) -> str:
        """The end of what it has written to stderr."""
        size = os.fstat(self._err.fileno()).st_size
        text = os.pread(self._err.fileno(), _BYTES_MAX, max(0, size - _BYTES_MAX)).decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines()]
        return "\n".join(line for line in lines[-_LINES_MAX:] if line)


def _answer(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LoginError(
            f"its answer cannot be read, perhaps of another version: {text[:100].decode(errors='replace')}"
        )
    return found


_everywhere: weakref.WeakSet[Login] = weakref.WeakSet()


def _forget_all() -> None:
    """In a child by fork, which may outlive the script: hosts are not to."""
    for login in list(_everywhere):
        login.let_go()


os.register_at_fork(after_in_child=_forget_all)


def close_all(logins: Iterable[Login]) -> None:
    """They end within a second, or are killed."""
    logins = list(logins)
    for login in logins:
        login.let_go()
    until = time.monotonic() + _END_S
    for login in logins:
        login.close(until)


def told(failures: dict[str, str]) -> str:
    """What is wrong with each host, for a screen."""
    lines = []
    for host, why in list(failures.items())[:_HOSTS_MAX]:
        lines.append(f"  {host}: " + why.replace("\n", "\n    "))
    if len(failures) > _HOSTS_MAX:
        lines.append(f"  and {len(failures) - _HOSTS_MAX} more hosts")
    return "\n".join(lines)
