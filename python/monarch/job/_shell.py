"""A shell on a host: ``shell``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from monarch.actor import Channel
from monarch.job._descriptors import readable, write_all
from monarch.job._exec import check_env, check_hosts
from monarch.job._terminal import Size, Terminal

if TYPE_CHECKING:
    from monarch._meshes.host_mesh import HostMesh

__all__ = ["shell"]

_CHUNK = 4096  # bytes: what a terminal takes at once


def shell(host_mesh_singleton: HostMesh, *, env: dict[str, str] | None = None, workdir: str | None = None) -> int:
    """An interactive shell on one host, in this terminal. Returns its exit status when it has ended; 128 + n: signal n.

    All keys go there, Ctrl-C too, and the size of the window. If stdin is no terminal, what comes from there is what
    the shell runs, without a terminal. Whatever happens, this terminal is afterwards as it was, and the shell, with
    what runs in it, has ended.

    Args:
        host_mesh_singleton: one host; more are a ``ValueError``.
        env: added to the environment.
        workdir: the working directory, on the host; ``RuntimeError`` if there is none.

    Raises ``SupervisionError`` if the host dies.
    """
    check_hosts("a shell", host_mesh_singleton)
    if len(host_mesh_singleton) != 1:
        sizes = host_mesh_singleton.sizes
        one = ", ".join(f"{label}=0" for label in sizes)
        raise ValueError(f"a shell runs on one host, and these are {sizes}: take one, with .slice({one})")
    added = {"TERM": os.environ.get("TERM", "dumb"), **check_env(env)}
    procs = host_mesh_singleton.spawn_procs(name="shell")
    procs._unwatch()  # whoever waits here is told
    try:
        terminal: Any = procs.spawn("shell", Terminal)
        status = _Session(terminal, added, workdir).run()
        procs.stop().get()
        return status
    except BaseException:
        procs._kill().exception()
        raise


class _Session:
    """This side of it: what is typed goes there on the thread that has asked, what comes is shown on another one."""

    def __init__(self, terminal: Any, env: dict[str, str], workdir: str | None) -> None:
        self._terminal = terminal
        self._env, self._workdir = env, workdir
        self._stdin = -1 if sys.__stdin__ is None else 0
        self._is_terminal = self._stdin >= 0 and os.isatty(self._stdin)
        self._outcome: int | BaseException | None = None

    def run(self) -> int:
        port, receiver = Channel[Any].open()
        size = _window() if self._is_terminal else None
        ended = self._terminal.start.call_one(port, self._env, self._workdir, size)
        awake, wake = os.pipe()
        for work in ((_tell_failure, ended, port), (self._show, receiver, wake)):
            threading.Thread(target=work[0], args=work[1:], name="monarch-shell", daemon=True).start()
        try:
            with _raw(self._stdin) if self._is_terminal else contextlib.nullcontext(), self._told_of_signals() as told:
                self._type(awake, told)
        finally:
            os.close(awake)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def _show(self, receiver: Any, wake: int) -> None:
        try:
            while not isinstance(what := receiver.recv().get(), int):
                write_all(1, what)
            self._outcome = what
        except BaseException as error:
            self._outcome = error
        with contextlib.suppress(OSError):  # nobody waits any more
            os.write(wake, b".")
        os.close(wake)

    def _type(self, awake: int, told: int) -> None:
        """Until the shell has ended."""
        sources = [fd for fd in (awake, told, self._stdin) if fd >= 0]
        if self._stdin < 0:
            self._terminal.end_input.broadcast()
        while self._outcome is None:
            ready = readable(sources)
            if told in ready:
                if signal.SIGWINCH in os.read(told, _CHUNK) and self._is_terminal:
                    self._terminal.resize.broadcast(_window())
            elif awake in ready:
                return
            elif data := self._read():
                self._terminal.write.call_one(data).exception()  # what dies is shown by the other thread
            else:
                sources.remove(self._stdin)
                self._terminal.end_input.call_one().exception()

    def _read(self) -> bytes:
        try:
            return os.read(self._stdin, _CHUNK)
        except OSError:  # the terminal is gone
            return b""

    @contextlib.contextmanager
    def _told_of_signals(self) -> Iterator[int]:
        """A descriptor that their numbers come from, -1: none do. Ends in order when this process is to.

        A handler by itself would wait for the next key, if its signal came just before ``select`` began.
        """
        if threading.current_thread() is not threading.main_thread():
            yield -1
            return

        def end(number: int, _: Any) -> None:
            raise SystemExit(128 + number)

        handlers: dict[int, Any] = {signal.SIGTERM: end, signal.SIGHUP: end}
        if self._is_terminal:
            handlers[signal.SIGWINCH] = lambda *_: None  # its number says all
        told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        wakeup = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield told
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            os.close(told)
            os.close(tell)


def _tell_failure(ended: Any, port: Any) -> None:
    """It does not come from the port by itself."""
    try:
        if (why := ended.get()) is not None:
            port.exception(RuntimeError(f"the shell {why}"))
    except BaseException as error:
        port.exception(error)


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _window() -> Size:
    try:
        size = os.get_terminal_size(0)
    except OSError:
        size = shutil.get_terminal_size()
    return size.lines, size.columns
