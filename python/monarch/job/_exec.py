"""Commands on hosts: ``exec_command``."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._checks import check_sizes
from monarch.actor import Channel, Extent, Point, send
from monarch.job._descriptors import write_all
from monarch.job._runner import Order, Runner

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.host_mesh import HostMesh

__all__ = ["Execution", "check_env", "check_hosts", "check_point", "check_words", "exec_command", "is_python"]


def exec_command(
    host_mesh: HostMesh,
    cmd: list[str],
    env: dict[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: dict[str, int] | None = None,
    per_host: dict[str, int] | None = None,
) -> Future[int]:
    """Runs a command on each host, in a process of its own. The future is the largest exit status; 128 + n: signal n.

    It begins at once, and ends also if nobody looks at the future: the end of the script waits for it, unless Ctrl-C
    has ended the script, which ends the command too. Its processes have ended when the future is done. If one of them
    dies, or cannot run the command, the future raises (``SupervisionError``, ``RuntimeError``), and the others end.
    Where it fails, or its status is not 0, and nobody looks at the future, a line on stderr says so.

    Each rank finds where it is in ``MONARCH_RANK_<DIMENSION>``, and how many there are in ``MONARCH_SIZE_<DIMENSION>``.
    Standard input is empty. What it prints comes out here as it comes: byte by byte if it is one rank, by line and with
    the rank in front, ``[1]``, if there are more.

    Args:
        host_mesh: the hosts.
        cmd: one word: what bash takes as a script; more: a program and its arguments, as they are. If the first ends in
            ``.py``, or is ``-m``, Python runs it, in the process itself, as ``__main__``: but one word with a blank in
            it, ``"cat a.py"``, is for bash.
        env: added to the environment.
        workdir: the working directory, on the host.
        output_dir: a folder here, made if need be, for what is printed: ``<rank>.log`` has all of that rank.
        rank: only that one, of all ranks: those of the hosts, times ``per_host``.
        point: only the ranks with these coordinates, ``{"hosts": 1}``.
        per_host: so many processes on each host, ``{"gpus": 8}``; none: one.

    Nonsense is a ``TypeError`` or a ``ValueError``.
    """
    words = check_words(cmd)
    python = is_python(words)
    order = Order(words, None, python, check_env(env), workdir, {}, {}, 0)
    return Execution(host_mesh, order, output_dir, rank, point, per_host).on_thread(words)


class Execution:
    """A command that runs: on hosts, in processes of its own."""

    def __init__(
        self, host_mesh: HostMesh, order: Order, output_dir: str | None, rank: int | None = None,
        point: dict[str, int] | None = None, per_host: dict[str, int] | None = None, by_line: str | None = None,
    ) -> None:  # fmt: skip
        """As :func:`exec_command`; the order is without ranks. ``by_line``: all print by line, and are called so."""
        check_hosts("a command", host_mesh)
        sizes = _all_ranks(host_mesh, per_host or {})
        at = _where(sizes, rank, point)
        hosts = host_mesh.slice(**{label: at[label] for label in host_mesh.sizes if label in at})
        self._procs = hosts.spawn_procs(
            {k: v for k, v in (per_host or {}).items() if k not in at} or None, name=by_line or "exec"
        )
        self._procs._unwatch()  # whoever looks at the future is told
        try:
            count = len(self._procs)
            streams = 1 if output_dir is not None else 2 if count == 1 and by_line is None else 0
            self.points = [{**point, **at} for point in (Point(r, self._procs.extent) for r in range(count))]
            self.codes: dict[int, int] = {}  # rank -> its exit status
            self.output_dir = output_dir
            self._sink = _Streams() if output_dir is None else _Files(output_dir, count)
            port, self._receiver = Channel[Any].open()
            order = order._replace(sizes=sizes, at=at, streams=streams)
            runners: Any = self._procs.spawn("exec", Runner)
            send(runners.run, (port, order), {}, port)
        except BaseException:
            self._procs._kill()
            raise

    def on_thread(self, words: list[str]) -> Future[int]:
        """What :meth:`wait` returns, or raises; the end of the script waits for it.

        Where that is a failure, and nobody has looked by then, it is told, with these words of the command.
        """
        from monarch._calls.python_futures import watched_on_thread  # imports asyncio

        if not _running:
            atexit.unregister(_finish)
            atexit.register(_finish)  # to run before the end of the runtime, which has begun by now
        future: Any = watched_on_thread(self.wait, "monarch-exec", f"exec_command({_short(words)})", self._failed)
        _running[self] = future
        _unseen.add(future)
        future._done.add_done_callback(lambda _: _running.pop(self, None))
        return future

    def _failed(self, status: int) -> str | None:
        if status == 0:
            return None
        failed = [rank for rank, code in sorted(self.codes.items()) if code != 0]
        ranks = ", ".join(map(str, failed[:_NAMED_MAX])) + (", ..." if len(failed) > _NAMED_MAX else "")
        where = "" if len(self.codes) == 1 else f" on rank{'s' * (len(failed) > 1)} {ranks}"
        return f"its exit status is {status}{where}"

    def kill(self) -> None:
        """Ends it, with all that it has started; returns when that is done."""
        self._procs._kill().exception()

    def wait(self) -> int:
        """Until it has ended: its largest exit status. What interrupts this ends it."""
        try:
            with self._sink:
                while len(self.codes) < len(self._procs):
                    self._take(*self._receiver.recv().get())
            self._procs.stop().get()
        except BaseException:
            self.kill()
            raise
        return max(self.codes.values())

    def _take(self, rank: int, what: int | str, data: bytes | None = None) -> None:
        if isinstance(what, str):
            raise RuntimeError(f"rank {rank} {what}")
        if data is None:
            self.codes[rank] = what
        else:
            self._sink.write(rank, what, data)


_NAMED_MAX = 5  # ranks
_running: dict[Execution, Future[int]] = {}
_unseen: weakref.WeakSet[Any] = weakref.WeakSet()  # futures that somebody has, and may not have looked at


def _short(words: list[str]) -> str:
    text = repr(words)
    return text if len(text) <= 200 else text[:200] + "..."


def _finish() -> None:
    """The script ends when its commands have, unless Ctrl-C has ended it."""
    if _core.in_forked_child():
        return

    def wait_for(future: Any) -> None:
        future._done.exception()  # which is not a look at it

    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for execution, future in list(_running.items()):
        try:
            if not interrupted:
                wait_for(future)
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            execution.kill()
            wait_for(future)
    for future in list(_unseen):
        if interrupted:
            future._looked = True  # whoever pressed it knows
        future.complain()


# ---- What is asked for ----


def check_hosts(what: str, hosts: Any) -> None:
    """``TypeError`` if they are none."""
    from monarch._meshes.host_mesh import HostMesh

    if not isinstance(hosts, HostMesh):
        raise TypeError(f"{what} runs on a HostMesh, such as job.state().trainers, and not on {hosts!r}")


def check_words(cmd: Any) -> list[str]:
    """A command; ``TypeError`` or ``ValueError`` if it is none."""
    if isinstance(cmd, str) or not all(isinstance(word, (str, os.PathLike)) for word in cmd):
        raise TypeError(f"cmd must be a list of words such as ['ls', '-l'], but is {cmd!r}")
    words = [os.fspath(word) for word in cmd]
    if not words or words == ["-m"] or not words[0]:
        raise ValueError(f"cmd must name a command, as ['ls', '-l'] or ['-m', 'module'] do, but is {cmd!r}")
    if any("\0" in word for word in words):
        raise ValueError(f"cmd cannot have a zero byte in a word: {cmd!r}")
    return words


def is_python(words: list[str]) -> bool:
    """Whether Python runs it, and not bash."""
    is_line = len(words) == 1 and len(words[0].split()) > 1
    return words[0] == "-m" or (words[0].endswith(".py") and not is_line)


def check_env(env: Any) -> dict[str, str]:
    """Variables; ``TypeError`` or ``ValueError`` if they cannot be some."""
    if env is not None and not isinstance(env, Mapping):
        raise TypeError(f"env must be a dict of names and values, but is {env!r}")
    for key, value in (env or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"env must map names to values, both str, but has {key!r}: {value!r}")
        if not key or "=" in key or "\0" in key + value:
            raise ValueError(f"env cannot have {key!r}: {value!r}")
    return dict(env or {})


def _all_ranks(hosts: HostMesh, per_host: dict[str, int]) -> dict[str, int]:
    check_sizes("per_host", per_host, "process")
    if taken := [label for label in per_host if label in hosts.sizes]:
        raise ValueError(f"per_host labels {taken} overlap with host labels {tuple(hosts.sizes)}")
    return {**hosts.sizes, **per_host}


def _where(sizes: dict[str, int], rank: int | None, point: dict[str, int] | None) -> dict[str, int]:
    """The dimensions along which one index is wanted, and which."""
    if rank is not None and point is not None:
        raise ValueError("either rank or point says where a command runs, not both")
    if rank is not None:
        extent = Extent(list(sizes), list(sizes.values()))
        if not isinstance(rank, int) or not 0 <= rank < extent.nelements:
            raise ValueError(f"rank must be one of 0 to {extent.nelements - 1}, but is {rank!r}")
        return dict(Point(rank, extent))
    return check_point(sizes, point)


def check_point(sizes: dict[str, int], point: dict[str, int] | None) -> dict[str, int]:
    """Coordinates of some of these ranks; ``ValueError`` if there are none."""
    for label, index in (point or {}).items():
        if label not in sizes:
            raise ValueError(f"there is no dimension {label!r}: point may name {', '.join(sizes) or 'none'}")
        if not isinstance(index, int) or not 0 <= index < sizes[label]:
            raise ValueError(f"point must have 0 to {sizes[label] - 1} for {label!r}, but has {index!r}")
    return dict(point or {})


# ---- Where its output goes ----


class _Streams:
    """stdout and stderr of this process."""

    def __enter__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, rank: int, stream: int, data: bytes) -> None:
        if (sys.__stdout__ if stream == 1 else sys.__stderr__) is not None:  # else that number is something else's
            write_all(stream, data)


class _Files:
    """A file for each rank."""

    def __init__(self, folder: str, count: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._paths = [os.path.join(os.path.abspath(folder), f"{rank}.log") for rank in range(count)]
        self._fds: list[int] = []

    def __enter__(self) -> None:
        try:
            for path in self._paths:
                self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def write(self, rank: int, stream: int, data: bytes) -> None:
        write_all(self._fds[rank], data)
