"""A job whose hosts are processes of this machine."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch import _core
from monarch._config import settings
from monarch._processes import launch
from monarch.job import _ending
from monarch.job._attached import Attached, Needed, check_meshes
from monarch.job._descriptors import readable
from monarch.job._ending import JOB_ID
from monarch.job._log import logger
from monarch.job._trait import JobState, JobTrait

if TYPE_CHECKING:
    from monarch.job._detached import Detached

__all__ = ["ProcessJob"]

_GRACE_S = 1.0  # between SIGTERM and SIGKILL
_GONE_S = 1.0  # for a worker at which nobody listens: it did
_KILL_LIMIT_S = 10.0  # for what has been killed to be gone
_PATH_MAX = 107  # bytes of a socket's
_PREFIX = "monarch-job-"  # of folders
_NAMED_MAX = 5  # hosts, in a message
_NEW_S = 60.0  # in which a folder's workers are sure to be there


class _Run(NamedTuple):
    """What has been started, as it is saved."""

    folder: str  # of this user alone: a socket and a log for each worker, their token
    machine: str  # where, until its next start
    program: tuple[str, ...]  # what they run
    meshes: dict[str, int]
    env: dict[str, str]
    workers: list[_ending.Process]  # of all meshes, one after the other


class _Here:
    """What belongs to this process."""

    def __init__(self) -> None:
        self.attached = Attached()
        self.processes: list[Detached] = []  # children
        self.lifelines: list[int] = []
        _everywhere.add(self)

    def let_lifelines_go(self) -> None:
        while self.lifelines:
            os.close(self.lifelines.pop())


_everywhere: weakref.WeakSet[_Here] = weakref.WeakSet()


def _forget_lifelines() -> None:
    """In a child by fork, which may outlive the script: workers are not to."""
    for here in list(_everywhere):
        here.let_lifelines_go()


os.register_at_fork(after_in_child=_forget_lifelines)


class ProcessJob(JobTrait):
    """Hosts on this machine: so many worker processes (``monarch-hostd``) for each mesh, with the dimension ``hosts``.

    What runs there has the environment, the working directory, the interpreter and the ``sys.path`` that the script had
    when it applied the job. Saved, the job outlives the script, and the next one that wants the same goes on with it;
    not saved, it ends with the script.

    :meth:`kill` ends all that its workers have started, also in sessions of their own: SIGTERM, and SIGKILL one second
    later. It raises ``RuntimeError`` if something is left, which only the system can hold up.
    """

    def __init__(self, meshes: dict[str, int], env: dict[str, str] | None = None) -> None:
        """
        Args:
            meshes: the name of each mesh, and how many hosts it has, ``{"trainers": 2}``.
            env: added to the environment of what runs there.
        """
        self._meshes = check_meshes(meshes)
        if env is not None and not isinstance(env, Mapping):
            raise TypeError(f"env must be a dict of names and values, such as {{'NAME': 'value'}}, but is {env!r}")
        for key, value in (env or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"env must map names to values, both str, but has {key!r}: {value!r}")
            if not key or "=" in key or "\0" in key + value:
                raise ValueError(f"env cannot have {key!r}: {value!r}")
        self._env = dict(env or {})
        self._run: _Run | None = None

    def __repr__(self) -> str:
        return f"ProcessJob({self._meshes!r})"

    def can_run(self, spec: JobTrait) -> bool:
        """Whether its workers are all there, on this machine, as many for the same meshes, and run the same."""
        run = self._run
        return (
            self._is_what(spec) and run is not None and not _lacks(run)
            and all(_ending.is_alive(worker) for worker in run.workers)
        )  # fmt: skip

    def _is_what(self, spec: JobTrait) -> bool:
        run = self._run
        if run is None or not isinstance(spec, ProcessJob) or not is_here(run):
            return False
        if (run.meshes, run.env, run.program) != (spec._meshes, spec._env, _program()):
            return False
        # Then its workers end, or have.
        return self._here is None or not self._here.attached.has_shut_down()

    def _is_running_for(self, needed: Needed) -> bool:
        run, first = self._run, 0
        if run is None or not self._is_what(self):
            return False
        for name, count in run.meshes.items():
            numbers = needed(name, count, first == 0)
            for number in range(count) if numbers is None else numbers:
                if not _ending.is_alive(run.workers[first + number]):
                    return False
            first += count
        return True

    def _specification(self) -> Any:
        return self._meshes, self._env, None if self._run is None else self._run.program

    def _runs_elsewhere(self) -> bool:
        run = self._run
        if run is None or is_here(run) or run.machine.rpartition("/")[0] != _core.machine_id():
            return False
        with contextlib.suppress(OSError):
            return any(map(_is_served, _sockets(run.folder)))
        return False

    def _has_ended(self) -> bool:
        run = self._run
        if run is None or not is_here(run):
            return True
        if self._here is not None and self._here.attached.has_shut_down():
            return True
        return not all(_ending.is_alive(worker) for worker in run.workers)

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("ProcessJob cannot run batch-mode scripts")
        if _core.in_simulation():
            raise NotImplementedError("ProcessJob: not in monarch.testing.simulate(), which has no real processes")
        here, folder = _Here(), _make_folder()
        _unsaved[folder] = os.getpid()
        self._here = here
        self._run = _Run(folder, _machine(), _program(), dict(self._meshes), dict(self._env), [])
        try:
            workers = _start_workers(here, folder, sum(self._meshes.values()), self._environment())
        except BaseException:
            self._kill()
            raise
        self._run = self._run._replace(workers=workers)

    def _environment(self) -> dict[bytes, bytes]:
        added = {**self._env, JOB_ID: str(self._apply_id)}
        return {**os.environb, **{os.fsencode(name): os.fsencode(value) for name, value in added.items()}}

    def _state(self) -> JobState:
        run = self._run
        assert run is not None
        if self._here is None:  # it was loaded
            self._here = _Here()
        attached: Attached = self._here.attached
        first = 0
        for name, count in run.meshes.items():
            addresses = [_address(run.folder, number) for number in range(first, first + count)]
            attached.attach(name, addresses, _token_file(run.folder), str(self._apply_id), _GONE_S)
            first += count
        return JobState(attached.hosts)

    def _start_keeper(self) -> Any:
        from monarch.job import _keeper

        assert self._run is not None
        return _keeper.keeper_of(self, self._run.folder, self._environment())

    def _note_saved(self) -> None:
        if self._run is not None:
            _unsaved.pop(self._run.folder, None)
        if self._here is not None:
            while self._here.lifelines:
                lifeline = self._here.lifelines.pop()
                with contextlib.suppress(BrokenPipeError):
                    os.write(lifeline, b".")
                os.close(lifeline)

    def _loses(self) -> str:
        run = self._run
        if run is None or not is_here(run):
            return ""
        shut_down = self._here is not None and self._here.attached.has_shut_down()
        places = [f"{mesh}[{number}]" for mesh, count in run.meshes.items() for number in range(count)]
        ended = [place for place, worker in zip(places, run.workers) if not _ending.is_alive(worker)]
        lost = [f"{len(ended)} of {len(places)} hosts have ended ({', '.join(ended[:_NAMED_MAX])})"] if ended else []
        if shut_down:
            lost = ["this script has shut its hosts down"]
        elif not lost and (lacks := _lacks(run)):
            lost = [f"its hosts cannot be reached, since {lacks} is gone"]
        if os.path.exists(os.path.join(run.folder, "keeper")):  # of monarch.job._keeper
            lost.append("what it may have adopted is lost")
        return ", and ".join(lost)

    def _kill(self) -> None:
        run, here = self._run, self._here
        if run is None:
            return
        if self._runs_elsewhere():
            raise RuntimeError(f"the workers of {self!r} run in another container of this machine: kill it there")
        if not is_here(run):
            logger.warning("the workers of %r are of another machine, or of before a restart: not looked for", self)
            self._run = None
            return
        until = time.monotonic() + _GRACE_S
        if here is not None:
            _let_go(here)
        grace_s = max(0.0, until - time.monotonic())
        left = _ending.end_all(f"{JOB_ID}={self._apply_id}", run.workers, grace_s, _KILL_LIMIT_S)
        if here is not None:
            for process in here.processes:
                process.poll()
        if left:
            raise RuntimeError(f"{self!r} cannot be killed: the processes {left} were sent SIGKILL and have not ended")
        _unsaved.pop(run.folder, None)
        _remove_folder(run.folder)
        self._run = self._here = None


# ---- Workers ----


def _start_workers(here: _Here, folder: str, count: int, env: dict[bytes, bytes]) -> list[_ending.Process]:
    """Starts them, and returns when all can be attached to. What has been started stands in ``here``."""
    defaults = launch.offered(env)
    for number in range(count):
        log = os.open(worker_log(folder, number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _start_worker(here, _address(folder, number), _token_file(folder), defaults, env, log)
        finally:
            os.close(log)
    limit = settings.seconds("host_spawn_ready_timeout")
    found = []
    for number, process in enumerate(here.processes):
        assert process.stdout is not None
        with process.stdout as told:
            if not readable([told.fileno()], limit):
                raise RuntimeError(f"a worker of a ProcessJob, process {process.pid}, is not ready after {limit:g} s")
            there = told.readline()
        worker = _ending.identify(process.pid)
        if not there or worker is None:
            process.wait()
            with open(worker_log(folder, number), errors="replace") as file:
                why = file.read().strip() or f"it ended with status {process.returncode}"
            raise RuntimeError(f"a worker of a ProcessJob cannot start: {why}")
        found.append(worker)
    return found


def _start_worker(
    here: _Here, address: str, token_file: str, defaults: bytes, env: dict[bytes, bytes], log: int
) -> None:
    import subprocess

    from monarch._meshes.workers import hostd_program
    from monarch.job._detached import Detached

    lifeline, its_end = os.pipe()
    here.lifelines.append(its_end)
    given, to_give = os.pipe()
    command = [hostd_program(), address, "--token-file", token_file]
    command += ["--defaults", str(given), "--lifeline", str(lifeline)]
    with contextlib.suppress(BrokenPipeError), open(to_give, "wb") as pipe:  # why it has ended is asked later
        try:
            worker = Detached(
                command, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                pass_fds=(given, lifeline), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(lifeline)
            os.close(given)
        here.processes.append(worker)
        pipe.write(defaults)


def _let_go(here: _Here) -> None:
    here.attached.let_go(_GRACE_S)
    here.let_lifelines_go()


def _program() -> tuple[str, ...]:
    """What tells workers of one installation from those of another."""
    from monarch._meshes.workers import hostd_program

    found = os.stat(hostd_program())
    return (launch.default_python or sys.executable, hostd_program(), f"{found.st_ino}:{found.st_mtime_ns}")


def _machine() -> str:
    """Where numbers of processes say which process that is: this machine, until its next start, and container."""
    return f"{_core.machine_id()}/{os.readlink('/proc/self/ns/pid')}"


def is_here(run: _Run) -> bool:
    """Whether numbers of its processes are numbers here. What was saved before there was a container in it counts."""
    return run.machine in (_machine(), _core.machine_id())


# ---- Their folder ----

_unsaved: dict[str, int] = {}  # folders that end with the process


def _make_folder() -> str:
    import tempfile

    _remove_forgotten(tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix=_PREFIX)  # mode 0700
    if len(os.fsencode(_address(folder, 99999))) - len("ipc://") > _PATH_MAX:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
    return folder


def _address(folder: str, number: int) -> str:
    return f"ipc://{folder}/{number}"


def _lacks(run: _Run) -> str:
    """What of its folder others have removed; empty: nothing."""
    needed = [_token_file(run.folder), *(os.path.join(run.folder, str(number)) for number in range(len(run.workers)))]
    return next((path for path in needed if not os.path.lexists(path)), "")


def _token_file(folder: str) -> str:
    return f"{folder}/token"


def worker_log(folder: str, number: int) -> str:
    """What this worker says, and what it has started to serve scripts; not what those print."""
    return f"{folder}/log.{number}"


def _remove_folder(folder: str, older_than_s: float = 0.0) -> None:
    """Only if it is ours: others may have made one of the same name, after a restart."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(folder)
        is_ours = found.st_uid == os.geteuid() and os.path.basename(folder).startswith(_PREFIX)
        if is_ours and found.st_mtime <= time.time() - older_than_s:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)


def _remove_forgotten(parent: str) -> None:
    """Those whose workers have ended by themselves, since their script was killed. One that is new has none yet."""
    for name in os.listdir(parent):
        folder = os.path.join(parent, name)
        with contextlib.suppress(OSError):  # another's, or gone meanwhile
            if name.startswith(_PREFIX) and not any(map(_is_served, _sockets(folder))):
                _remove_folder(folder, older_than_s=_NEW_S)


def _sockets(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.isdigit()]


def _is_served(path: str) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


@atexit.register
def _end_unsaved() -> None:
    """What has not been saved ends with its lifelines, which this process ends with."""
    for folder, pid in _unsaved.items():
        if pid == os.getpid():
            _remove_folder(folder)
