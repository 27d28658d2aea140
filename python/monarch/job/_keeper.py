"""Actors that outlive the scripts that use them: a process of the job owns them, and scripts are its guests.

The keeper is a script of the job's own, detached: attached to the hosts as any other, with one actor, whose handle lies
in a file of the job's folder. It spawns what it is told to, once for each name, and gives the handle to whoever asks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from monarch import _core
from monarch._calls import versions
from monarch._calls.future import got
from monarch._config import settings
from monarch._errors.exceptions import retold
from monarch.actor import Actor, ActorError, ActorMesh, MeshFailure, endpoint, this_proc
from monarch.job import _ending, _saved
from monarch.job._descriptors import readable
from monarch.job._detached import Detached
from monarch.job._trait import JobState, JobTrait, loads_to_end

_HANDLE, _LOG = "keeper", "log"  # in the job's folder


class Owner(Actor):
    """Of what was made under a name: processes and actors, which end with it."""

    def __init__(self, state: JobState) -> None:
        self._state = state

    @endpoint
    def make(self, name: str, make: bytes) -> bytes:
        """The mesh that ``make(state)`` returns; both by cloudpickle."""
        mesh = pickle.loads(make)(self._state)
        if not isinstance(mesh, ActorMesh):
            raise TypeError(f"what makes {name!r} must return a mesh of actors, but has returned {mesh!r}")
        mesh.initialized.get()
        return cloudpickle.dumps(mesh)

    def __supervise__(self, failure: MeshFailure) -> bool:
        print(f"a failure of what is kept: {failure}", file=sys.stderr, flush=True)
        return True  # who uses it is told by its calls


class Keeper(Actor):
    """Has the owner of what was made under each name, and its handle."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._kept: dict[str, tuple[Any, bytes]] = {}

    @endpoint
    def adopt(self, name: str, make: bytes) -> bytes:
        """The mesh of this name, by cloudpickle; if there is none, ``make(state)``, by cloudpickle too, makes it."""
        if name not in self._kept:
            owner: Any = this_proc().spawn("owner", Owner, self._state)
            try:
                self._kept[name] = owner, owner.make.call_one(name, make).get()
            except BaseException:
                owner.stop().get()
                raise
        return self._kept[name][1]

    @endpoint
    def names(self) -> list[str]:
        """Of what there is."""
        return sorted(self._kept)

    @endpoint
    def release(self, name: str) -> bool:
        """Stops these actors. False: there are none of this name."""
        if name not in self._kept:
            return False
        owner, _ = self._kept.pop(name)
        owner.stop().get()
        return True


class Kept:
    """What a keeper has, for a script."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def adopt(self, name: str, make: Callable[[JobState], ActorMesh[Any]]) -> ActorMesh[Any]:
        """What is kept under this name, or is made now."""
        if not isinstance(name, str) or not callable(make):
            raise TypeError(f"adopt takes a name, a str, and a function of the job's state, not {name!r} and {make!r}")
        try:
            mesh: ActorMesh[Any] = pickle.loads(got(self._actor.adopt.call_one(name, versions.dumps(make))))
        except ActorError as error:
            while isinstance(error.exception, ActorError):  # those that have called make
                error = error.exception
            raise retold(error, f"What is adopted as {name!r} cannot be made.") from None
        return mesh

    def names(self) -> list[str]:
        found: list[str] = got(self._actor.names.call_one())
        return found

    def release(self, name: str) -> bool:
        was_there: bool = got(self._actor.release.call_one(name))
        return was_there


def keeper_of(job: JobTrait, folder: str, env: Mapping[bytes, bytes]) -> Kept:
    """After its process has been started, if need be.

    Args:
        job: whose hosts it uses, as they have been allocated.
        folder: for this user alone.
        env: what it is started in.
    """
    path = os.path.join(folder, _HANDLE)
    with contextlib.ExitStack() as later, _saved.locked(path) as lock:
        if (found := _load(path)) is None:
            found = _start(job, folder, env, lock, later)
    return Kept(found)


def _load(path: str) -> Any:
    """None: nobody has started it, or it has ended."""
    try:
        saved, handle = _saved.unpack(_saved.read(path))
    except FileNotFoundError:
        return None
    return pickle.loads(handle) if _ending.is_alive(_ending.Process(*saved["process"])) else None


def _start(job: JobTrait, folder: str, env: Mapping[bytes, bytes], lock: int, later: contextlib.ExitStack) -> Any:
    """It has the lock too, until this script has left it or died: one that is killed leaves one keeper to the next.

    Args:
        lock: the descriptor that has it.
        later: closes the pipe by which the keeper sees that, after the lock was left.
    """
    told, to_tell = os.pipe()
    log = os.open(os.path.join(folder, _LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        code = "import json, sys; limit, sys.path[:] = json.loads(sys.stdin.readline()); "
        code += "from monarch.job import _keeper; "
        process = Detached(
            [sys.executable, "-c", f"{code}_keeper.main({folder!r}, {to_tell}, {lock}, limit)"],
            env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=(to_tell, lock), start_new_session=True,
            text=True,
        )  # fmt: skip
    finally:
        os.close(to_tell)
        os.close(log)
    assert process.stdin is not None
    told_file = later.enter_context(open(told))
    limit = settings.seconds("host_spawn_ready_timeout")
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps([limit, sys.path]) + "\n" + job.dumps().decode())
    if not readable([told], limit) or not told_file.readline():
        process.kill()
        process.wait()
        raise RuntimeError(f"the process that keeps actors of this job cannot start: {_log_path(folder)} says why")
    found = _load(os.path.join(folder, _HANDLE))
    assert found is not None
    return found


def _log_path(folder: str) -> str:
    return os.path.join(folder, _LOG)


def main(folder: str, to_tell: int, lock: int, limit_s: float) -> None:
    """The keeper's process: serves until it is killed, with its job. Ends if it cannot serve within ``limit_s``."""
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # who has started it, and waits, may be killed
    for fd in (to_tell, lock):
        os.set_inheritable(fd, False)
    _core.begin_lines_with_times()  # they are for a file
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    job = loads_to_end(sys.stdin.read().encode())[0]
    assert job._running is not None
    actor = this_proc().spawn("keeper", Keeper, job._running._state())
    actor.initialized.get()
    process = _ending.identify(os.getpid())
    assert process is not None
    handle = _saved.pack({"process": list(process)}, cloudpickle.dumps(actor))
    _saved.write(os.path.join(folder, _HANDLE), handle)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with contextlib.suppress(BrokenPipeError):  # who has started it may have been killed
        os.write(to_tell, b"\n")
    threading.Thread(target=_unlock, args=(to_tell, lock), daemon=True).start()
    ends.wait()


def _unlock(to_tell: int, lock: int) -> None:
    """When nobody reads what is told any more: who does is still within the lock, which is its own to leave."""
    poll = select.poll()
    poll.register(to_tell, 0)  # POLLERR
    poll.poll()
    fcntl.flock(lock, fcntl.LOCK_UN)  # whoever else has the descriptor by now
    os.close(lock)
    os.close(to_tell)
