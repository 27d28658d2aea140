"""Files that jobs are saved in: for their user alone, since who writes them can have this user run anything."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from typing import Any

from monarch.job._log import logger

__all__ = ["DEFAULT_JOB_PATH"]

DEFAULT_JOB_PATH = ".monarch/job_state.pkl"
DEFAULT_CONTEXT, STATE = "default", "state.pkl"  # a folder beside it, and the job in there

_FORMAT = 2
_TOLD_AFTER_S = 2.0
_SIZE_MAX = 1 << 30  # bytes; a job is some kilobytes


class AlteredError(ValueError):
    """A saved job that is whole, and not what its file says of it."""


def pack(about: dict[str, Any], pickled: bytes) -> bytes:
    """A saved job: JSON that says what it is (``about``), with its pickle, which nobody reads who does not want to."""
    text = base64.b64encode(pickled).decode()
    saved = {"monarch_job": _FORMAT, **about, "pickled": text}
    return json.dumps({**saved, "sha256": _digest(saved)}, indent=1).encode() + b"\n"


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """What :func:`pack` was given; nothing is unpickled. ``ValueError``: it is not that, or damaged."""
    try:
        saved = json.loads(data)
    except (ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict) or "monarch_job" not in saved:
        raise ValueError("it is no job that this project has saved. Remove it, or save the job elsewhere")
    if saved["monarch_job"] != _FORMAT:
        raise ValueError("it was saved by another version of this project. Kill the job with that, or remove the file")
    try:
        is_whole = saved.pop("sha256") == _digest(saved)
        pickled = base64.b64decode(saved.pop("pickled"), validate=True)
    except (KeyError, TypeError, RecursionError, binascii.Error):
        is_whole = False
    if not is_whole:
        raise ValueError(
            "it is damaged: something is missing, or was changed. Remove it; what it has started may go on (on this "
            "machine, `pgrep -af monarch-hostd` shows it)"
        )
    del saved["monarch_job"]
    return saved, pickled


def _digest(saved: dict[str, Any]) -> str:
    """Of all that a file says but this, however it is laid out."""
    return hashlib.sha256(json.dumps(saved, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def apply_id_in(path: str) -> str | None:
    """Of the job that is saved there; nothing is unpickled. None: there is none that can be read."""
    try:
        return str(unpack(read(path))[0].get("apply_id"))
    except (OSError, ValueError):
        return None


def places(path: str) -> tuple[str, ...]:
    """Where that is which was saved in this file: the first context that is made moves what is in the usual one."""
    is_usual = os.path.abspath(path).endswith(os.path.join(os.sep, DEFAULT_JOB_PATH))
    return (path, os.path.join(os.path.dirname(path), DEFAULT_CONTEXT, STATE)) if is_usual else (path,)


def read(path: str) -> bytes:
    """What is in the file. ``PermissionError`` if another user owns it or may write it; ``FileNotFoundError``.

    ``ValueError`` for what is no file: a pipe, say, that nobody writes to; or much too large.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    with open(fd, "rb") as file:
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
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_size > _SIZE_MAX:
            raise ValueError(f"it is too large for one: {found.st_size} bytes")
        return file.read()


def write(path: str, data: bytes) -> None:
    """As :func:`replace`, but what a symlink names is written."""
    replace(os.path.realpath(path), data)


def replace(path: str, data: bytes) -> None:
    """All of it or, if that fails, nothing: the file is replaced, in a folder that is made. With mode 0600."""
    import tempfile

    while True:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            fd, beside = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path))
            break
        except FileNotFoundError:
            continue  # somebody has found the folder empty, and removed it
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException as error:
        os.unlink(beside)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path
        raise


def log_path(name: str, make: bool = True) -> str:
    """Of a log in the working directory, whose folder is made, if it is to be."""
    folder = os.path.join(os.path.dirname(DEFAULT_JOB_PATH), "logs")
    if make:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, f"{name}.log")


def remove(path: str) -> None:
    """Nothing if it is not there. What a symlink names is removed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.realpath(path))


@contextlib.contextmanager
def locked(path: str) -> Iterator[int]:
    """No two of these blocks run at the same time, for the same file, whatever their processes.

    Who waits for more than 2 s says so in the log. The lock is that of the descriptor (``flock``): a process that is
    given it holds the lock too, if this one is killed.
    """
    lock = os.path.realpath(path) + ".lock"
    os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(fd, path)
            if _is_that_file(fd, lock):
                break
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # whoever had it before has removed it
    try:
        yield fd
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock)
        os.close(fd)


def _lock(fd: int, path: str) -> None:
    with contextlib.suppress(BlockingIOError):
        return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    told = threading.Timer(_TOLD_AFTER_S, logger.warning, ("waiting for another process that uses %s", path))
    told.daemon = True
    told.start()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        told.cancel()


def _is_that_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
