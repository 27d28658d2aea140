"""A read-only file system that the kernel asks this process about, by FUSE's protocol on ``/dev/fuse``.

Without libfuse: a file system that is only read takes a dozen requests. That library wants the signals of its process,
and a Python binding of it cannot tell the kernel of changes.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

_LOOKUP, _FORGET, _GETATTR, _READLINK, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _DESTROY, _FORGET_MANY = 25, 26, 27, 28, 29, 36, 38, 42
_CHANGED_INODE, _CHANGED_ENTRY = 2, 3  # what the kernel is told

_REQUEST = struct.Struct("=IIQQIIIHH")  # length, what, number, inode, user, group, process
_ANSWER = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQqqqIIIIIIIIII")  # times may be before 1970
_READ_IN = struct.Struct("=QQI")
_ENTRY = struct.Struct("=QQQQII")
_DIRECTORY_ENTRY = struct.Struct("=QQII")
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")

_ASYNC_READ, _BIG_WRITES, _PARALLEL, _CACHE_SYMLINKS, _MAX_PAGES = 1 << 0, 1 << 5, 1 << 18, 1 << 23, 1 << 22
_NO_OPEN = 1 << 17  # it opens files without asking, once it has been told that there is no answer to that
_DIRECT, _KEEP_CACHE = 1, 2  # how a file is opened
READ_SIZE = 1 << 20  # bytes of one read, at most
_MAX_WRITE = 65536  # the kernel wants room for it, though nobody may write
_BUFFER = 2 * _MAX_WRITE
_WRITES = os.O_WRONLY | os.O_RDWR
_THREADS = 8


class Attributes(NamedTuple):
    mode: int  # as in stat: kind and permissions
    size: int
    mtime_ns: int


class Files(Protocol):
    """What is shown. Paths are relative, ``""`` is the root; called on several threads at once. Raises ``OSError``."""

    valid_s: float  # so long the kernel need not ask again
    keeps: bool  # what has been read is read again without asking, until the kernel is told of a change

    def attributes(self, path: str) -> Attributes: ...
    def names(self, path: str) -> list[tuple[str, int]]:
        """What is in a directory, and of which mode each is."""

    def read(self, path: str, offset: int, size: int) -> bytes: ...
    def target(self, path: str) -> str: ...


class Kernel:
    """Answers the kernel's requests, on threads of its own, until the file system is not mounted any more."""

    def __init__(self, fd: int, files: Files) -> None:
        """``fd``: ``/dev/fuse``, opened for this mount; closed at the end."""
        self._fd, self._files = fd, files
        self._lock = threading.Lock()
        self._paths = {1: ""}  # by inode, of what the kernel has not forgotten
        self._inodes = {"": 1}
        self._looks: dict[int, int] = {}  # how often the kernel has been told of an inode, less what it has taken back
        self._last_inode = 1
        self._open: dict[int, list[tuple[str, int]]] = {}  # directories
        self._last = 0
        self._opens_itself = False
        self._threads: list[threading.Thread] = []
        self._owner = os.getuid(), os.getgid()
        self._answers: dict[int, Callable[[int, memoryview], bytes]] = {
            _LOOKUP: self._lookup, _GETATTR: self._getattr, _READLINK: self._readlink, _OPEN: self._open_file,
            _READ: self._read, _STATFS: lambda *_: struct.pack("=QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0),
            _RELEASE: lambda *_: b"", _OPENDIR: self._open_directory,
            _READDIR: self._read_directory, _RELEASEDIR: self._close_directory, _INIT: self._init,
        }  # fmt: skip

    def start(self) -> None:
        for number in range(_THREADS):
            run = contextvars.copy_context().run  # calls are made there, as this actor
            thread = threading.Thread(target=run, args=(self._serve,), name=f"mount {number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self, limit_s: float) -> None:
        """After it was unmounted. Where somebody still uses a file, it is served until this process ends."""
        until = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._fd)

    def changed(self, path: str, is_entry: bool) -> None:
        """Has the kernel forget a file's attributes and content; ``is_entry``: and whether there is one."""
        parent, _, name = path.rpartition("/")
        with self._lock:
            inode, folder = self._inodes.get(path), self._inodes.get(parent)
        if inode is not None:
            self._tell(_CHANGED_INODE, struct.pack("=Qqq", inode, 0, 0))
        if is_entry and folder is not None:
            text = os.fsencode(name)
            self._tell(_CHANGED_ENTRY, struct.pack("=QII", folder, len(text), 0) + text + b"\0")

    def _tell(self, what: int, body: bytes) -> None:
        with contextlib.suppress(OSError):  # it knows nothing of it, or it is not mounted any more
            os.write(self._fd, _ANSWER.pack(_ANSWER.size + len(body), what, 0) + body)

    def _serve(self) -> None:
        buffer = bytearray(_BUFFER)
        while True:
            try:
                size = os.readv(self._fd, [buffer])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the request was taken back
                    continue
                return  # ENODEV: unmounted
            _, what, number, inode, *_ = _REQUEST.unpack_from(buffer)
            if what == _DESTROY:
                return
            if what in (_FORGET, _FORGET_MANY):
                self._forget(what, inode, memoryview(buffer)[_REQUEST.size : size])
            elif what != _INTERRUPT:
                self._answer(what, number, inode, memoryview(buffer)[_REQUEST.size : size])

    def _answer(self, what: int, number: int, inode: int, body: memoryview) -> None:
        failed, answer = 0, b""
        try:
            if (handle := self._answers.get(what)) is None:
                raise OSError(errno.ENOSYS, "")
            answer = handle(inode, body)
        except OSError as error:
            failed = error.errno or errno.EIO
        except Exception:  # whoever brings it is gone
            failed = errno.EIO
        with contextlib.suppress(OSError):  # nobody waits any more
            os.writev(self._fd, [_ANSWER.pack(_ANSWER.size + len(answer), -failed, number), answer])

    def _init(self, inode: int, body: memoryview) -> bytes:
        _, _, readahead, offered = _INIT_IN.unpack_from(body)
        self._opens_itself = self._files.keeps and bool(offered & _NO_OPEN)
        flags = offered & (_ASYNC_READ | _BIG_WRITES | _PARALLEL | _CACHE_SYMLINKS | _MAX_PAGES)
        return _INIT_OUT.pack(7, 31, max(readahead, READ_SIZE), flags, 16, 12, _MAX_WRITE, 1, READ_SIZE // 4096, 0, 0)

    def _valid(self) -> tuple[int, int]:
        whole = int(self._files.valid_s)
        return whole, int((self._files.valid_s - whole) * 1e9)

    def _packed(self, inode: int, found: Attributes) -> bytes:
        whole, rest = divmod(found.mtime_ns, 10**9)
        links = 2 if stat.S_ISDIR(found.mode) else 1
        return _ATTRIBUTES.pack(
            inode, found.size, (found.size + 511) // 512, whole, whole, whole, rest, rest, rest, found.mode, links,
            *self._owner, 0, 4096, 0,
        )  # fmt: skip

    def _inode(self, path: str) -> int:
        """Of what the kernel is now told of once more."""
        with self._lock:
            inode = self._inodes.get(path)
            if inode is None:
                inode = self._last_inode = self._last_inode + 1
                self._inodes[path], self._paths[inode] = inode, path
            self._looks[inode] = self._looks.get(inode, 0) + 1
            return inode

    def _forget(self, what: int, inode: int, body: memoryview) -> None:
        if what == _FORGET:
            taken_back = [(inode, struct.unpack_from("=Q", body)[0])]
        else:
            count, _ = struct.unpack_from("=II", body)
            taken_back = list(struct.iter_unpack("=QQ", body[8 : 8 + 16 * count]))
        with self._lock:
            for inode, looks in taken_back:
                left = self._looks.get(inode, looks) - looks
                if left > 0:
                    self._looks[inode] = left
                elif self._looks.pop(inode, None) is not None:
                    del self._inodes[self._paths.pop(inode)]

    def _lookup(self, inode: int, body: memoryview) -> bytes:
        path = _join(self._paths[inode], os.fsdecode(bytes(body).rstrip(b"\0")))
        whole, rest = self._valid()
        try:
            found = self._files.attributes(path)
        except FileNotFoundError:
            if not self._files.keeps:
                raise
            return _ENTRY.pack(0, 0, whole, 0, rest, 0) + bytes(_ATTRIBUTES.size)  # so that it need not ask again
        number = self._inode(path)
        return _ENTRY.pack(number, 0, whole, whole, rest, rest) + self._packed(number, found)

    def _getattr(self, inode: int, body: memoryview) -> bytes:
        return struct.pack("=QII", *self._valid(), 0) + self._packed(inode, self._files.attributes(self._paths[inode]))

    def _readlink(self, inode: int, body: memoryview) -> bytes:
        return os.fsencode(self._files.target(self._paths[inode]))

    def _open_file(self, inode: int, body: memoryview) -> bytes:
        if struct.unpack_from("=I", body)[0] & _WRITES:
            raise OSError(errno.EROFS, "")
        if self._opens_itself:  # and keeps what it has read
            raise OSError(errno.ENOSYS, "")
        return struct.pack("=QII", 0, _KEEP_CACHE if self._files.keeps else _DIRECT, 0)

    def _read(self, inode: int, body: memoryview) -> bytes:
        _, offset, size = _READ_IN.unpack_from(body)
        return self._files.read(self._paths[inode], offset, size)

    def _open_directory(self, inode: int, body: memoryview) -> bytes:
        names = [(".", stat.S_IFDIR), ("..", stat.S_IFDIR), *self._files.names(self._paths[inode])]
        with self._lock:
            self._last += 1
            self._open[self._last] = names
            return struct.pack("=QII", self._last, 0, 0)

    def _read_directory(self, inode: int, body: memoryview) -> bytes:
        handle, offset, size = _READ_IN.unpack_from(body)
        parts, length = [], 0
        for at, (name, mode) in enumerate(self._open[handle][offset:], offset + 1):
            text = os.fsencode(name)
            entry = _DIRECTORY_ENTRY.pack(0xFFFFFFFF, at, len(text), stat.S_IFMT(mode) >> 12) + text
            entry += bytes(-len(entry) % 8)
            length += len(entry)
            if length > size:
                break
            parts.append(entry)
        return b"".join(parts)

    def _close_directory(self, inode: int, body: memoryview) -> bytes:
        self._open.pop(struct.unpack_from("=Q", body)[0], None)
        return b""


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
