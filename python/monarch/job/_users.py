"""Who uses a saved job: a file for each process, beside the job's, which it holds a lock on while it lives.

The lock tells the living from the dead, on other machines that share the folder, too. Files are made, and looked at,
while the job's own file is locked (``_saved.locked``).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
from typing import NamedTuple

from monarch.job import _ending


class User(NamedTuple):
    """A process that is attached to a saved job."""

    apply_id: str  # of that job
    exclusive: bool  # nobody else is to use it
    who: str  # for people

    def __str__(self) -> str:
        return self.who


_held: dict[str, int] = {}  # this process's own: a descriptor for each file


def others(path: str, apply_id: str | None) -> list[User]:
    """Those of other processes that live and use this job. Files of the dead are removed."""
    prefix = _prefix(path)
    folder, begin = os.path.split(prefix)
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith(begin)]
    users = [_look_at(file) for file in files if file not in _held]
    return [user for user in users if user is not None and user.apply_id == apply_id]


def enter(path: str, apply_id: str, exclusive: bool) -> bool:
    """This process uses the job, until it ends; False: it is known already. To be exclusive once is to stay so."""
    file = f"{_prefix(path)}{os.uname().nodename}.{os.getpid()}"
    known = _held.get(file)
    before = None if known is None else _read(known)
    if before is not None and before.apply_id == apply_id and (before.exclusive or not exclusive):
        return False
    own = _ending.identify(os.getpid())
    user = User(apply_id, exclusive, "this process" if own is None else _ending.describe(own))
    fd = _made(file) if known is None else known
    data = json.dumps(user._asdict()).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
    _held[file] = fd
    return before is None or before.apply_id != apply_id


def leave(path: str) -> None:
    """This process does not use the job any more."""
    prefix = _prefix(path)
    for file in [file for file in _held if file.startswith(prefix)]:
        _remove(file)


def _prefix(path: str) -> str:
    return os.path.realpath(path) + ".user."


def _made(file: str) -> int:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it: it bears the number of this process
    return fd


def _look_at(file: str) -> User | None:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(fd)
    else:
        os.unlink(file)
        return None
    finally:
        os.close(fd)


def _read(fd: int) -> User | None:
    try:
        return User(**json.loads(os.pread(fd, 1 << 16, 0)))
    except (ValueError, TypeError):
        return None  # it was killed while it wrote, or is of another version


def _remove(file: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(file)
    os.close(_held.pop(file))


@atexit.register
def _leave_all() -> None:
    for file in list(_held):
        _remove(file)


def _forget() -> None:
    """In a child by fork: it is not this user."""
    while _held:
        os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_forget)
