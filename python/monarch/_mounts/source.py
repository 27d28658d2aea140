"""What is in a directory: its index, and blocks of its files."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

BLOCK = 2 << 20  # bytes that are brought at a time
SMALL = 1 << 20  # files below this are brought at once
_BATCH = 8 << 20  # bytes of one message, about
_LEFT_OUT = ".monarch"
_UNSEEN = (PermissionError, FileNotFoundError, NotADirectoryError)  # shown as empty, or left out; or gone meanwhile
_KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)


class Entry(NamedTuple):
    mode: int
    size: int
    mtime_ns: int
    target: str | None = None  # of a symlink


Index = dict[str, Entry]  # by path relative to the directory, which itself is ""


def check(root: str) -> os.stat_result:
    """``OSError`` if it is no directory."""
    found = os.stat(root)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "a directory can be mounted, and this is none", root)
    return found


def scan(root: str) -> Index:
    """All below ``root`` but ``.monarch``, sockets, pipes and devices. ``OSError`` if it is no directory."""
    found = check(root)
    index = {"": Entry(found.st_mode, 0, found.st_mtime_ns)}
    folders = [""]
    while folders:
        _scan_one(root, folders.pop(), index, folders)
    return index


def _scan_one(root: str, folder: str, index: Index, folders: list[str]) -> None:
    try:
        listed = list(os.scandir(os.path.join(root, folder)))
    except _UNSEEN:
        return
    for item in listed:
        path = f"{folder}/{item.name}" if folder else item.name
        try:
            found = item.stat(follow_symlinks=False)
            target = os.readlink(item.path) if stat.S_ISLNK(found.st_mode) else None
        except _UNSEEN:
            continue
        if item.name == _LEFT_OUT or not any(is_kind(found.st_mode) for is_kind in _KINDS):
            continue
        is_folder = stat.S_ISDIR(found.st_mode)
        index[path] = Entry(found.st_mode, 0 if is_folder else found.st_size, found.st_mtime_ns, target)
        if is_folder:
            folders.append(path)


def is_small(entry: Entry) -> bool:
    return stat.S_ISREG(entry.mode) and 0 < entry.size < SMALL


def small_files(root: str, index: Index, paths: list[str]) -> Iterator[dict[str, bytes]]:
    """What is in those of ``paths`` that are small, some megabytes at a time. Those that have changed are left out."""
    batch: dict[str, bytes] = {}
    size = 0
    for path in paths:
        if not is_small(entry := index[path]):
            continue
        try:
            batch[path] = read(root, path, entry, 0, entry.size)
        except OSError:
            continue
        size += entry.size
        if size >= _BATCH:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def read(root: str, path: str, entry: Entry, offset: int, size: int) -> bytes:
    """``OSError`` with EIO if the file is not what ``entry`` says, before or after."""
    with open(os.path.join(root, path), "rb", buffering=0) as file:
        data = b""
        while len(data) < size and (more := os.pread(file.fileno(), size - len(data), offset + len(data))):
            data += more
        found = os.fstat(file.fileno())
    if (found.st_size, found.st_mtime_ns) != (entry.size, entry.mtime_ns):
        raise OSError(errno.EIO, "the file has changed since it was mounted: refresh()", path)
    return data


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
