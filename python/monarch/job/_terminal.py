"""A shell in a worker: the actor of ``shell``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import threading
from typing import Any

from monarch.actor import Actor, Port, endpoint
from monarch.job._runner import exit_status, process_group, spawn

__all__ = ["Size", "Terminal"]

Size = tuple[int, int]  # rows and columns

_CHUNK = 1 << 16  # bytes


class Terminal(Actor):
    """One shell, in a process of its own: in a terminal of its own, or with pipes."""

    _fd: int = -1  # what is written here, it reads

    @endpoint(explicit_response_port=True)
    def start(
        self, ended: Port[str | None], port: Port[Any], env: dict[str, str], workdir: str | None, size: Size | None
    ) -> None:
        """Starts it, and answers when it has ended, or why it cannot be started.

        Args:
            ended: for the answer.
            port: for what it prints, bytes, and then its exit status, an int.
            env: added to the environment.
            workdir: the working directory; None: that of the process.
            size: of the terminal; None: it has none, and its input ends with :meth:`end_input`.
        """
        os.environ.update(env)
        try:
            if workdir is not None:
                os.chdir(workdir)
        except OSError as error:
            ended.send(f"cannot run in {workdir!r}: {error.strerror}")
            return
        ends = contextlib.ExitStack()  # what the shell leaves behind
        pid, output = self._in_pipes(ends) if size is None else self._in_terminal(size, ends)
        threading.Thread(
            target=_watch, args=(ended, port, pid, output, ends), name="monarch-shell", daemon=True
        ).start()

    @endpoint
    def write(self, data: bytes) -> None:
        """What is typed; answered when it has been taken. Nothing if nobody reads it any more."""
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            self.end_input_now()

    @endpoint
    def resize(self, size: Size) -> None:
        """The terminal has another size, of which what runs in the foreground is told (SIGWINCH)."""
        _set_size(self._fd, size)

    @endpoint
    def end_input(self) -> None:
        """Nothing more is typed."""
        self.end_input_now()

    def end_input_now(self) -> None:
        if self._fd >= 0 and not os.isatty(self._fd):
            os.close(self._fd)
            self._fd = -1

    def _in_terminal(self, size: Size, ends: contextlib.ExitStack) -> tuple[int, int]:
        self._fd, its_end = os.openpty()
        _set_size(self._fd, size)
        path = os.ttyname(its_end)
        # To open it makes it the terminal of the new session.
        opened: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0)]
        opened += [(os.POSIX_SPAWN_DUP2, 0, fd) for fd in (1, 2)]
        pid = spawn(["bash", "-i"], opened, setsid=True)
        ends.callback(_end_session, pid)
        os.close(its_end)
        return pid, os.dup(self._fd)

    def _in_pipes(self, ends: contextlib.ExitStack) -> tuple[int, int]:
        its_input, self._fd = os.pipe()
        output, its_output = os.pipe()
        fds: list[Any] = [(os.POSIX_SPAWN_DUP2, its_input, 0)]
        fds += [(os.POSIX_SPAWN_DUP2, its_output, fd) for fd in (1, 2)]
        pid = spawn(["bash", "-s"], fds, setpgroup=ends.enter_context(process_group()))
        os.close(its_input)
        os.close(its_output)
        return pid, output


def _set_size(fd: int, size: Size) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _end_session(leader: int) -> None:
    """Kills all that is in it."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            if os.getsid(int(entry)) == leader:
                os.kill(int(entry), signal.SIGKILL)


def _watch(ended: Port[str | None], port: Port[Any], pid: int, output: int, ends: contextlib.ExitStack) -> None:
    reader = threading.Thread(target=_forward, args=(port, output), name="monarch-shell-output", daemon=True)
    reader.start()
    status = exit_status(pid, ends)
    reader.join(_LAST_WORDS_S)
    port.send(status)
    ended.send(None)


_LAST_WORDS_S = 1.0  # for what it has printed; a daemon may hold its output for longer


def _forward(port: Port[Any], output: int) -> None:
    try:
        while data := os.read(output, _CHUNK):
            port.send(data)
    except OSError:
        pass  # a terminal that nobody has open any more
