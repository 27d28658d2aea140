"""Where there is no FUSE: a host gives the files of a mount to the import systems of its processes, over a socket.

Its name follows from the mount and the machine, so that a process needs to be told only the mount. It is abstract:
nothing of it is left when this process ends, however it does.
"""

from __future__ import annotations

import contextvars
import errno
import itertools
import pickle
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from monarch._mounts import hook
from monarch._mounts.kernel import Attributes, Files
from monarch._mounts.source import BLOCK

_THREADS = 8
_LINKS = 40  # that a path may lead through


class Served:
    """Answers requests of this user's processes, on threads of its own, until :meth:`close`."""

    def __init__(self, mount: str, path: str, files: Files) -> None:
        self._path, self._files = path, files
        self._listener = socket.socket(socket.AF_UNIX)
        for number in itertools.count():  # hosts of one machine may have several mount points
            try:
                self._listener.bind(hook.address(mount, number))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        self._listener.listen(1024)
        for number in range(_THREADS):
            run = contextvars.copy_context().run  # calls are made there, as this actor
            threading.Thread(target=run, args=(self._serve,), name=f"imports {number}", daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:
                return  # closed
            with asker:
                try:
                    self._answer(asker)
                except Exception:  # who has asked is gone, or is somebody else
                    continue

    def _answer(self, asker: socket.socket) -> None:
        hook.check_peer(asker)
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, hook.LIMIT)
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
        with asker.makefile("rwb") as file:
            what, argument = pickle.load(file)
            answers: dict[str, Callable[[Any], Iterator[Any]]] = {
                "where": self._where, "attributes": self._attributes, "names": self._names, "read": self._read,
            }  # fmt: skip
            try:
                for answer in answers[what](argument):
                    pickle.dump(answer, file)
                pickle.dump(None, file)
            except OSError as error:
                pickle.dump(error.errno or errno.EIO, file)
            except Exception:  # whoever brings it is gone
                pickle.dump(errno.EIO, file)

    def _where(self, _: Any) -> Iterator[str]:
        yield self._path

    def _attributes(self, paths: list[str]) -> Iterator[list[Attributes | None]]:
        found: list[Attributes | None] = []
        for path in paths:
            try:
                found.append(self._files.attributes(self._resolved(path)))
            except OSError:
                found.append(None)
        yield found

    def _names(self, path: str) -> Iterator[list[str]]:
        yield [name for name, _ in self._files.names(self._resolved(path))]

    def _read(self, path: str) -> Iterator[bytes]:
        path = self._resolved(path)
        before = self._files.attributes(path)
        if not stat.S_ISREG(before.mode):
            raise OSError(errno.EISDIR, "")
        for offset in range(0, before.size, BLOCK):
            yield self._files.read(path, offset, BLOCK)
        if self._files.attributes(path) != before:
            raise OSError(errno.ESTALE, "")

    def _resolved(self, path: str) -> str:
        """Where symlinks lead, as far as that is in the mount."""
        left, at, links = path.split("/")[::-1], "", 0
        while left:
            name = left.pop()
            if name == "..":
                if not at:
                    raise FileNotFoundError(errno.ENOENT, "")
                at = at.rpartition("/")[0]
            elif name not in ("", "."):
                next_one = f"{at}/{name}" if at else name
                if not stat.S_ISLNK(self._files.attributes(next_one).mode):
                    at = next_one
                    continue
                target, links = self._files.target(next_one), links + 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, "")
                if target.startswith("/"):
                    at, inside = "", hook.below(self._path, target)
                    if inside is None:
                        raise FileNotFoundError(errno.ENOENT, "")
                    target = inside
                left += target.split("/")[::-1]
        return at
