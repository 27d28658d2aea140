"""What is in a folder: its files, folders and links, and what is in its files by hash."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from monarch._files.conda import Prefix
from monarch._files.ignore import ALWAYS, FILE, Rules, read_rules, rules

__all__ = ["BLOCK", "Entry", "Index", "Tree", "hash_file", "leads_out", "scan", "walk"]

BLOCK = 4 << 20  # bytes that are read at once
_NO_FILE = (errno.ENOTDIR, errno.ENXIO)  # of a path below what is a file now, and of a socket
_TRIES = 5  # for a file that changes while it is read
_FINE_NS, _COARSE_NS = 20_000_000, 2_000_000_000  # how exact times of files are, where they have parts of seconds
_WORTH_A_WAIT = 16 << 20  # bytes, whose hash takes about as long


class Entry(NamedTuple):
    """A file ("f"), folder ("d") or link ("l")."""

    kind: str
    mode: int  # its permission bits; of a link 0
    size: int = 0  # bytes of a file
    content: bytes = b""  # the hash of a file, where a link leads


class Tree(NamedTuple):
    """A folder as it is sent."""

    name: str  # its path in the workspace
    outer: list[tuple[bytes, bytes]] | None  # rules that count for it from above: outer_rules(); None: none at all
    entries: dict[bytes, Entry]  # by path; a folder comes before what is in it
    prefix: Prefix | None = None  # of an environment, whose files say where it is


class Index:
    """Hashes of files as they were, kept in a file: who has not been touched since need not be read again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._is_new = False
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            kept = json.load(file)
            if isinstance(kept, dict) and kept.get("version") == 1 and isinstance(kept.get("files"), dict):
                self._known = kept["files"]

    def get(self, path: bytes, of: os.stat_result) -> bytes | None:
        """Its hash, if the file is the one that it was."""
        name = os.fsdecode(path)
        kept = self._known.get(name)
        if not isinstance(kept, list) or kept[:-1] != _identity(of):
            return None
        self._seen[name] = kept
        return bytes.fromhex(kept[-1])

    def put(self, path: bytes, of: os.stat_result, digest: bytes) -> None:
        """Unless it is so young that a change within the same tick of its clock would not show."""
        self._is_new = True
        age = time.time_ns() - max(of.st_mtime_ns, of.st_ctime_ns)
        if age > (_FINE_NS if of.st_ctime_ns % 1_000_000_000 else _COARSE_NS):
            self._seen[os.fsdecode(path)] = [*_identity(of), digest.hex()]

    @staticmethod
    def settle(size: int) -> None:
        """Before ``put`` of files that have just been written: waits until they are old enough.

        Unless to read their ``size`` bytes once more takes no longer.
        """
        if size > _WORTH_A_WAIT:
            time.sleep(_FINE_NS / 1e9)

    def save(self) -> None:
        """Keeps what has been asked for or put since it was made. Where that cannot be kept, all is read again."""
        if not self._is_new and len(self._seen) == len(self._known):
            return
        beside = f"{self._path}.{os.getpid()}-{threading.get_ident()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(beside, "w", encoding="ascii") as file:
                file.write(json.dumps({"version": 1, "files": self._seen}))
            os.replace(beside, self._path)
        with contextlib.suppress(OSError):
            os.unlink(beside)


def _identity(of: os.stat_result) -> list[int]:
    return [of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_ino]


def walk(root: bytes, outer: list[tuple[bytes, bytes]] | None) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """What is in the folder and not left out, by path; a folder comes before what is in it."""
    pending = [(b"", [rules(text, prefix=prefix) for prefix, text in outer or ()])]
    while pending:
        folder, above = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                entries = sorted((entry for entry in found if entry.name not in ALWAYS), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            if not folder:
                raise
            continue  # it went meanwhile
        here = above
        if outer is not None and any(entry.name == FILE for entry in entries):
            here = [*above, rules(read_rules(os.path.join(root, folder)), skip=len(folder))]
        for entry in entries:
            path, is_folder = folder + entry.name, entry.is_dir(follow_symlinks=False)
            if here and _is_ignored(here, path, entry.name, is_folder):
                continue
            yield path, entry
            if is_folder:
                pending.append((path + b"/", here))


def _is_ignored(all_rules: list[Rules], path: bytes, name: bytes, is_folder: bool) -> bool:
    for each in reversed(all_rules):
        if (decided := each.decide(path, name, is_folder)) is not None:
            return decided
    return False


def scan(root: bytes, outer: list[tuple[bytes, bytes]] | None, index: Index) -> tuple[dict[bytes, Entry], list[str]]:
    """What is there, and what of it is no part of it, in words: links that lead out of the folder, sockets, devices."""
    entries: dict[bytes, Entry] = {}
    skipped: list[str] = []
    real_root = os.path.realpath(root)
    for path, found in walk(root, outer):
        try:
            entry = _entry_of(root, real_root, path, found, index)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it went meanwhile
        if isinstance(entry, Entry):
            entries[path] = entry
        else:
            skipped.append(f"{os.fsdecode(path)!r} {entry}")
    return entries, skipped


def _entry_of(root: bytes, real_root: bytes, path: bytes, found: os.DirEntry[bytes], index: Index) -> Entry | str:
    """Or what it is that is left out."""
    of = found.stat(follow_symlinks=False)
    mode = stat.S_IMODE(of.st_mode) & 0o777
    if stat.S_ISDIR(of.st_mode):
        return Entry("d", mode)
    if stat.S_ISREG(of.st_mode):
        digest = index.get(path, of)
        if digest is None:
            of, digest = hash_file(found.path)
            index.put(path, of, digest)
        return Entry("f", stat.S_IMODE(of.st_mode) & 0o777, of.st_size, digest)
    if not stat.S_ISLNK(of.st_mode):
        return "(no file, folder or link)"
    try:
        leads_to = os.readlink(found.path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FileNotFoundError(error.errno, "it is no link any more", found.path) from None
        raise
    end = os.path.realpath(found.path)
    is_inside = end == real_root or end.startswith(real_root.rstrip(b"/") + b"/")
    if leads_out(path, leads_to) or not is_inside:
        return f"(a link to {os.fsdecode(leads_to)!r})"
    return Entry("l", 0, 0, leads_to)


def leads_out(path: bytes, leads_to: bytes) -> bool:
    """Whether a link at ``path`` does, by its text alone."""
    end = os.path.normpath(os.path.join(b"/root", os.path.dirname(path), leads_to))
    return leads_to.startswith(b"/") or not (end + b"/").startswith(b"/root/")


def hash_file(path: bytes) -> tuple[os.stat_result, bytes]:
    """Of one moment: what changes while it is read is read again. ``OSError`` if it does so over and over."""
    for block in read_file(path):
        if not isinstance(block, bytes):
            return block
    raise AssertionError


def read_file(path: bytes) -> Iterator[bytes | tuple[os.stat_result, bytes]]:
    """Its blocks; an empty one says that it has changed, and begins anew; at last what it is, and its hash.

    ``FileNotFoundError`` if it is none any more.
    """
    for _ in range(_TRIES):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NO_FILE or os.path.islink(path):
                raise FileNotFoundError(error.errno, "it is no file any more", path) from None
            raise
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            os.close(handle)
            raise FileNotFoundError(0, "it is no file any more", path)
        with open(handle, "rb", buffering=0) as file:
            digest = hashlib.blake2b(digest_size=20)
            size = 0
            while block := file.read(min(BLOCK, before.st_size - size + 1)):
                digest.update(block)
                size += len(block)
                if size > before.st_size:
                    break  # it grows
                yield block
            after = os.fstat(handle)
        if size == before.st_size and _identity(before) == _identity(after):
            yield after, digest.digest()
            return
        yield b""
    raise OSError(0, f"it has changed {_TRIES} times while it was read", path)
