"""Who uses a saved job: a file for each process, beside the job's, on which it holds a lock while it lives.

The lock tells the living from the dead, on other machines that share the folder, too. Files are made, moved and looked
at while the job's own file is locked (``_saved.locked``). What is no such file is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import stat
from typing import NamedTuple

from monarch.job import _ending


class User(NamedTuple):
    """A process that is attached to a saved job."""

    apply_id: str  # of that job
    exclusive: bool  # nobody else is to use it
    host: str
    who: str  # for people

    def __str__(self) -> str:
        return self.who if self.host == os.uname().nodename else f"{self.who} on {self.host}"


class _Own(NamedTuple):
    file: str  # its name when it was made: it may have been moved
    fd: int
    user: User


_held: dict[str, _Own] = {}  # this process's own, by apply_id


def others(path: str, apply_id: str | None) -> list[User]:
    """Those of other processes that live and use this job; None: any that was ever saved there.

    Files of the dead are removed.
    """
    users = map(_look_at, _files(path))
    return [user for user in users if user is not None and apply_id in (user.apply_id, None)]


def is_own(apply_id: str | None) -> bool:
    """Whether this process uses that job."""
    return apply_id in _held


def enter(path: str, apply_id: str, exclusive: bool) -> bool:
    """This process uses the job, until it ends; False: it is known already. To be exclusive once is to stay so."""
    own = _held.get(apply_id)
    if own is not None:
        if exclusive and not own.user.exclusive:
            user = own.user._replace(exclusive=True)
            _write(own.fd, user)
            _held[apply_id] = own._replace(user=user)
        return False
    process = _ending.identify(os.getpid())
    who = f"process {os.getpid()}" if process is None else _ending.describe(process)
    user = User(apply_id, exclusive, os.uname().nodename, who)
    file = _prefix(path) + os.urandom(6).hex()
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(fd, user)
        _held[apply_id] = _Own(file, fd, user)
    except BaseException:
        os.close(fd)
        os.unlink(file)
        raise
    return True


def leave(apply_id: str | None) -> None:
    """This process does not use that job any more, if it did."""
    if apply_id is not None and (own := _held.pop(apply_id, None)) is not None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(own.fd), os.lstat(own.file)):
                os.unlink(own.file)
        os.close(own.fd)


def move(path: str, to: str) -> None:
    """The job that is saved there is saved elsewhere now."""
    for file in _files(path):
        if _look_at(file, own_too=True) is not None:
            os.rename(file, _prefix(to) + file.rpartition(".")[2])


def forget(path: str) -> None:
    """Nothing is saved there any more."""
    for file in _files(path):
        if _look_at(file, own_too=True) is not None:
            os.unlink(file)


def _prefix(path: str) -> str:
    return os.path.realpath(path) + ".user."


def _files(path: str) -> list[str]:
    folder, begin = os.path.split(_prefix(path))
    with contextlib.suppress(FileNotFoundError):
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith(begin)]
    return []


def _write(fd: int, user: User) -> None:
    data = json.dumps(user._asdict()).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def _look_at(file: str, own_too: bool = False) -> User | None:
    """None: there is no living one, or it is this process."""
    with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            user = _read(fd)
            if any(os.path.samestat(found, os.fstat(own.fd)) for own in _held.values()):
                return user if own_too else None
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if user is not None or found.st_size == 0:
                os.unlink(file)
        except BlockingIOError:
            return user
        finally:
            os.close(fd)
    return None


def _read(fd: int) -> User | None:
    """None: it is no such file, or one whose process was killed as it made it."""
    try:
        return User(**json.loads(os.pread(fd, 1 << 16, 0)))
    except (ValueError, TypeError):
        return None


@atexit.register
def _leave_all() -> None:
    for apply_id in list(_held):
        leave(apply_id)


def _forget_own() -> None:
    """In a child by fork: it is not this user."""
    while _held:
        os.close(_held.popitem()[1].fd)


os.register_at_fork(after_in_child=_forget_own)
