"""Files that jobs are saved in: for their user alone, since who writes them can have this user run anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator

__all__ = ["DEFAULT_JOB_PATH"]

DEFAULT_JOB_PATH = ".monarch/job_state.pkl"


def read(path: str) -> bytes:
    """What is in the file. ``PermissionError`` if another user owns it or may write it; ``FileNotFoundError``."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"{path} is not read as a saved job: it belongs to user {found.st_uid}, and to read one runs what its "
                f"writer wants; this is user {os.geteuid()}. Remove it, or save the job elsewhere"
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                f"{path} is not read as a saved job: others than its owner may write it (mode "
                f"{stat.S_IMODE(found.st_mode):04o}). Remove it, or chmod 600 it if nobody else has"
            )
        return file.read()


def write(path: str, data: bytes) -> None:
    """All of it or, if that fails, nothing: the file is replaced. With mode 0600. What a symlink names is written."""
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd, beside = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path))
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException as error:
        os.unlink(beside)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path
        raise


def log_path(name: str) -> str:
    """Of a log in the working directory, whose folder is made."""
    folder = os.path.join(os.path.dirname(DEFAULT_JOB_PATH), "logs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, f"{name}.log")


def remove(path: str) -> None:
    """Nothing if it is not there. What a symlink names is removed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.realpath(path))


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """No two of these blocks run at the same time, for the same file, whatever their processes."""
    lock = os.path.realpath(path) + ".lock"
    os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_that_file(fd, lock):
                break
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # whoever had it before has removed it
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock)
        os.close(fd)


def _is_that_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
