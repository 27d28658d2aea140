"""What runs a command in a worker: the actor of ``exec_command``."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import linecache
import os
import select
import shutil
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from monarch._errors.tracebacks import as_printed
from monarch.actor import Actor, Port, current_rank, endpoint

__all__ = ["NO_PATH", "Order", "Runner", "exit_status", "process_group", "spawn"]

_CHUNK = 1 << 16  # bytes
_SCRIPT_FD = 9  # where bash finds a script that came as text
NO_PATH = "/usr/local/bin:/usr/bin:/bin"  # where programs are looked for, where PATH is not set


class Order(NamedTuple):
    """A command, as workers are told of it."""

    words: list[str]
    script: bytes | None  # the text of a program; then the words are its arguments
    python: bool  # it runs in this process, and not in bash
    env: dict[str, str]
    workdir: str | None
    sizes: dict[str, int]  # of all ranks that there could be
    at: dict[str, int]  # along which dimensions only one index runs
    streams: int  # sent to the port: 0, neither; 1, both as one; 2, each


class Runner(Actor):
    """Runs one command, in a process of its own."""

    @endpoint
    def run(self, port: Port[Any], order: Order) -> tuple[int, int | str]:
        """Its rank, and its exit status, or why it cannot run. Sends ``(rank, 1 or 2, bytes)`` for what it prints."""
        rank = current_rank().rank
        try:
            os.environ.update(order.env)
            os.environ.update(_of_rank(order.sizes, {**current_rank(), **order.at}))
            if order.workdir is not None:
                os.chdir(order.workdir)
        except OSError as error:
            return rank, f"cannot run in {order.workdir!r}: {error.strerror}"
        with _sent(port, rank, order.streams):
            try:
                return rank, _run_python(order) if order.python else _run_bash(order)
            except OSError as error:  # of starting it: what it raises itself is printed
                return rank, f"cannot run it: {error.strerror}{f': {error.filename!r}' if error.filename else ''}"


def _of_rank(sizes: dict[str, int], at: dict[str, int]) -> dict[str, str]:
    found = {}
    for label, size in sizes.items():
        found[f"MONARCH_RANK_{label.upper()}"] = str(at[label])
        found[f"MONARCH_SIZE_{label.upper()}"] = str(size)
    return found


# ---- bash ----


def _run_bash(order: Order) -> int:
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    with contextlib.ExitStack() as ends:
        group = ends.enter_context(process_group())
        if order.script is not None:
            actions.append((os.POSIX_SPAWN_DUP2, ends.enter_context(_in_memory(order.script)), _SCRIPT_FD))
            words = [f"/proc/self/fd/{_SCRIPT_FD}", *order.words]
        else:
            words = ["-c", "--", order.words[0]] if len(order.words) == 1 else ["-c", '"$@"', "bash", *order.words]
        return exit_status(spawn(["bash", *words], actions, setpgroup=group), ends)


def spawn(words: list[str], actions: list[Any], **how: Any) -> int:
    """Starts a program, in which signals do what they do by default; a worker ignores Ctrl-C. Gives its process id.

    Args:
        words: a name that is looked up in ``PATH``, and where systems have their programs, and arguments.
        actions: with its descriptors, as ``os.posix_spawn`` has them.
        how: ``setpgroup``, ``setsid``.
    """
    env = os.environb if os.environb.get(b"PATH") else {**os.environb, b"PATH": NO_PATH.encode()}
    defaults = [signal.SIGINT, signal.SIGPIPE]
    places = f"{os.fsdecode(env[b'PATH'])}:{NO_PATH}"
    if (program := shutil.which(words[0], path=places)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
    return os.posix_spawn(program, words, env, file_actions=actions, setsigdef=defaults, **how)


def exit_status(pid: int, ends: contextlib.ExitStack) -> int:
    """Waits for a process, and ends what ``ends`` has while nobody else can get its number. 128 + n for a signal."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ends.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def process_group() -> Iterator[int]:
    """A process group that is killed at the end of the block, and also if this process dies.

    Its leader waits for the end of a pipe, and is there before anything that is to end with it.
    """
    end, lifeline = os.pipe()
    silent = [(os.POSIX_SPAWN_DUP2, end, 0), *((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2))]
    leader = spawn(["sh", "-c", "trap '' HUP INT TERM; read -r _; kill -KILL 0"], silent, setpgroup=0)
    os.close(end)
    try:
        yield leader
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        os.waitpid(leader, 0)
        os.close(lifeline)


@contextlib.contextmanager
def _in_memory(text: bytes) -> Iterator[int]:
    fd = os.memfd_create("script")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(text)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


# ---- Python ----


def _run_python(order: Order) -> int:
    from monarch.spmd import _scripts

    with _its_end():
        return _run_as_main(order, _scripts)


def _run_as_main(order: Order, _scripts: Any) -> int:
    try:
        if order.script is None:
            _scripts.run_program(order.words)
        else:
            with _in_memory(order.script) as fd:
                name = f"/proc/self/fd/{fd}"
                lines = order.script.decode(errors="replace").splitlines(keepends=True)
                linecache.cache[name] = (len(order.script), None, lines, name)  # for its tracebacks
                _scripts.run_program([name, *order.words])
    except SystemExit as end:
        return _status_of(end)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BaseException as error:
        sys.stderr.write(as_printed(error))
        return 1
    return 0


@contextlib.contextmanager
def _its_end() -> Iterator[None]:
    """What a program leaves for the end of its process happens at the end of this block: the process goes on.

    Its threads are waited for, as Python does that, and what it gave to ``atexit`` is called.
    """
    before = set(threading.enumerate())
    ends_before = len(getattr(threading, "_threading_atexits", ()))
    at_end: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def register(call: Any, *arguments: Any, **named: Any) -> Any:
        at_end.append((call, arguments, named))
        return call

    def unregister(call: Any) -> None:
        at_end[:] = [each for each in at_end if each[0] != call]
        forget(call)

    here: Any = threading.current_thread()
    is_daemon, here._daemonic = here._daemonic, False  # which threads that are started here inherit
    at_exit: Any = atexit
    remember, forget = at_exit.register, at_exit.unregister
    at_exit.register, at_exit.unregister = register, unregister
    try:
        yield
        _end_pools(ends_before)
        before.add(here)
        while left := [each for each in threading.enumerate() if each not in before and not each.daemon]:
            for thread in left:
                thread.join()
        while at_end:
            call, arguments, named = at_end.pop()
            try:
                call(*arguments, **named)
            except BaseException as error:
                sys.stderr.write(f"Exception ignored in atexit callback: {call!r}\n{as_printed(error)}")
    finally:
        at_exit.register, at_exit.unregister = remember, forget
        here._daemonic = is_daemon


def _end_pools(ends_before: int) -> None:
    """As at the end of a process: what was submitted to pools is done, and their threads, which are no daemons, end."""
    for call in reversed(getattr(threading, "_threading_atexits", [])[ends_before:]):
        call()
    for name in ("process", "thread"):  # which may have been imported before
        if (pools := sys.modules.get(f"concurrent.futures.{name}")) is not None:
            pools._python_exit()


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


# ---- What is printed ----


@contextlib.contextmanager
def _sent(port: Port[Any], rank: int, streams: int) -> Iterator[None]:
    """Meanwhile what this process and its children print goes to the port: as it comes, byte by byte."""
    if streams == 0:
        yield
        return
    saved = [os.dup(1), os.dup(2)]
    pipes = [os.pipe() for _ in range(streams)]
    stop, stopping = os.pipe()
    for fd in (1, 2):
        os.dup2(pipes[min(fd, streams) - 1][1], fd)
    names = {read_end: number for number, (read_end, write_end) in enumerate(pipes, start=1)}
    for _, write_end in pipes:
        os.close(write_end)
    reader = threading.Thread(target=_forward, args=(port, rank, names, stop), daemon=True)
    reader.start()
    try:
        yield
    finally:
        _flush()
        for fd, before in zip((1, 2), saved):
            os.dup2(before, fd)
            os.close(before)
        os.close(stopping)
        reader.join()
        for fd in (stop, *names):
            os.close(fd)


def _forward(port: Port[Any], rank: int, names: dict[int, int], stop: int) -> None:
    """Until all have closed the pipes or, at ``stop``, with what is in them: a daemon of the command may write on."""
    poll = select.poll()
    for fd in (stop, *names):
        poll.register(fd, select.POLLIN)
    left, ready = set(names), list[int]()
    while left and stop not in ready:
        ready = [fd for fd, _ in poll.poll()]
        for fd in left.intersection(ready):
            if data := os.read(fd, _CHUNK):
                port.send((rank, names[fd], data))
            else:
                poll.unregister(fd)
                left.remove(fd)
    for fd in left:
        (there,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        while there > 0:
            data = os.read(fd, min(there, _CHUNK))
            port.send((rank, names[fd], data))
            there -= len(data)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
