"""Remote mounts: a directory of the client, to be read on hosts."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._errors.exceptions import ActorError, retold
from monarch._meshes import active
from monarch._meshes.host_mesh import HostMesh, this_host
from monarch._meshes.mesh import whole
from monarch._meshes.proc_mesh import ProcMesh
from monarch._mounts import hook, source
from monarch._mounts.imports import Served
from monarch._mounts.kernel import Attributes
from monarch._mounts.points import NoFuse, Point
from monarch._mounts.source import BLOCK, Entry, Index
from monarch._mounts.subdir import with_subdir
from monarch._runtime.context import context
from monarch._runtime.here import here

__all__ = ["RemoteMount", "remotemount"]

logger = logging.getLogger("monarch.mounts")

_ANSWER_S = 30.0  # within which a block must have come
_KEPT = 512  # blocks that a host keeps, beside those that its kernel does


class Source(Actor):
    """On the client's machine: reads its files. In a process of its own, since a script may hold its GIL for long."""

    def __init__(self) -> None:
        self._root, self._index = "", Index()

    @endpoint
    def scan(self, root: str) -> tuple[Index, list[str]]:
        """Looks at the directory: what is new or other than the last time, and what is gone."""
        before, self._root, self._index = self._index, root, source.scan(root)
        changed = {path: entry for path, entry in self._index.items() if before.get(path) != entry}
        return changed, [path for path in before if path not in self._index]

    @endpoint
    def prefill(self, hosts: Any, paths: list[str]) -> None:
        for batch in source.small_files(self._root, self._index, paths):
            hosts.fill.call(batch).get()

    @endpoint
    def block(self, path: str, entry: Entry, number: int, known: bytes | None) -> bytes | int | None:
        """An errno if it cannot be read; None: it is what had the digest ``known``."""
        try:
            data = source.read(self._root, path, entry, number * BLOCK, BLOCK)
        except OSError as error:
            return error.errno or errno.EIO
        return None if known is not None and known == source.digest(data) else data


class Cached:
    """The files as a host has them: an index, small files, and blocks of the others by content."""

    valid_s, keeps = 86400.0, True

    def __init__(self, origin: Any) -> None:
        self._origin = origin
        self._lock = threading.Lock()
        self._index = Index()
        self._children: dict[str, dict[str, int]] = {}
        self._small: dict[str, tuple[Entry, bytes]] = {}
        self._digests: dict[tuple[str, int], tuple[Entry, bytes]] = {}  # of blocks, as they were
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._asked: dict[tuple[str, int], threading.Lock] = {}

    def change(self, changed: Index, gone: list[str]) -> None:
        with self._lock:
            for path in gone:
                self._index.pop(path, None)
                self._small.pop(path, None)
                self._children.pop(path, None)
                folder, _, name = path.rpartition("/")
                self._children.get(folder, {}).pop(name, None)
            for path, entry in changed.items():
                self._index[path] = entry
                if stat.S_ISDIR(entry.mode):
                    self._children.setdefault(path, {})
                if path:
                    folder, _, name = path.rpartition("/")
                    self._children.setdefault(folder, {})[name] = entry.mode

    def fill(self, batch: dict[str, bytes]) -> None:
        with self._lock:
            for path, data in batch.items():
                self._small[path] = self._index[path], data

    def attributes(self, path: str) -> Attributes:
        entry = self._entry(path)
        return Attributes(entry.mode, entry.size, entry.mtime_ns)

    def names(self, path: str) -> list[tuple[str, int]]:
        self._entry(path)
        with self._lock:
            return list(self._children.get(path, {}).items())

    def target(self, path: str) -> str:
        return self._entry(path).target or ""

    def read(self, path: str, offset: int, size: int) -> bytes:
        entry = self._entry(path)
        kept = self._small.get(path)
        if kept is not None and kept[0] == entry:
            return kept[1][offset : offset + size]
        data = b""
        end = min(offset + size, entry.size)
        while offset < end:
            number, start = divmod(offset, BLOCK)
            part = self._block(path, entry, number)[start : start + end - offset]
            if not part:
                raise OSError(errno.EIO, "")
            data, offset = data + part, offset + len(part)
        return data

    def _entry(self, path: str) -> Entry:
        try:
            return self._index[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "") from None

    def _block(self, path: str, entry: Entry, number: int) -> bytes:
        """Brought once, however many ask for it."""
        key = path, number
        with self._lock:
            turn = self._asked.setdefault(key, threading.Lock())
        with turn:
            was, known = self._digests.get(key, (None, None))
            data = self._kept(known)
            if data is None or was != entry:
                data = self._brought(key, entry, known, data)
        with self._lock:
            self._asked.pop(key, None)
        return data

    def _kept(self, digest: bytes | None) -> bytes | None:
        with self._lock:
            if digest is None or digest not in self._blocks:
                return None
            self._blocks.move_to_end(digest)
            return self._blocks[digest]

    def _brought(self, key: tuple[str, int], entry: Entry, known: bytes | None, kept: bytes | None) -> bytes:
        answer = self._origin.block.call_one(key[0], entry, key[1], None if kept is None else known).get(_ANSWER_S)
        if isinstance(answer, int):
            raise OSError(answer, "")
        data = kept if answer is None else answer
        assert data is not None
        digest = source.digest(data)
        with self._lock:
            self._digests[key] = entry, digest
            self._blocks[digest] = data
            while len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        return data


class Mounter(Actor):
    """On a host: has the directory mounted."""

    def __init__(self, origin: Any, mntpoint: str) -> None:
        self._files = Cached(origin)
        self._path = with_subdir(mntpoint)
        self._point: Point | Served | None = None

    @endpoint
    def where(self) -> tuple[str, str]:
        """The machine, and the mount point there."""
        return _core.machine_id(), self._path

    @endpoint
    def begin(self, changed: Index, serve: list[int], mount: str) -> str | None:
        """``serve``: those ranks that mount it; the others are on a machine where one of them does.

        Returns why there is no FUSE here, and it is ``mount`` for imports.
        """
        if context().message_rank.rank not in serve:
            return None
        self._files.change(changed, [])
        try:
            self._point = Point(self._path, self._files)
        except NoFuse as error:
            self._point = Served(mount, self._path, self._files)
            return str(error)
        return None

    @endpoint
    def fill(self, batch: dict[str, bytes]) -> None:
        if self._point is not None:
            self._files.fill(batch)

    @endpoint
    def change(self, changed: Index, gone: list[str]) -> None:
        if self._point is None:
            return
        self._files.change(changed, gone)
        if isinstance(self._point, Point):
            for path in (*changed, *gone):
                self._point.kernel.changed(path, path != "")

    @endpoint
    def end(self) -> None:
        if self._point is not None:
            self._point.close()
            self._point = None


class RemoteMount:
    """A directory of this machine, mounted read-only on hosts. For one thread at a time.

    It is there between :meth:`open` and :meth:`close`, and ends with the script.
    """

    def __init__(self, hosts: Sequence[HostMesh], sourcepath: str, mntpoint: str) -> None:
        """``hosts``: meshes; paths are absolute, ``mntpoint`` is as in :func:`remotemount`."""
        self._hosts, self._source, self._mntpoint = hosts, sourcepath, mntpoint
        self._procs: list[ProcMesh] = []
        self._origin: Any = None
        self._mounters: list[Any] = []
        self._number = ""  # of the mount, for hosts without FUSE
        self.without_fuse: list[str] = []  # why, of each such host

    def open(self) -> None:
        """Mounts it; returns when files can be read everywhere. Nothing, if it is open.

        On hosts without FUSE only imports find it, and a line on stderr says so. ``OSError`` if the source cannot be
        read. What else goes wrong on a host, ``ActorError`` says: the mount point is in use.
        """
        if self._procs:
            return
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, ActorError):
                raise retold(error, f"{self!r} cannot be opened.") from None
            raise

    def _open(self) -> None:
        source.check(self._source)
        self._procs.append(this_host().spawn_procs(name="remote_mount_source"))
        self._origin = self._procs[0].spawn("source", Source)
        changed, _ = self._origin.scan.call_one(self._source).get()
        serving: dict[tuple[str, str], tuple[int, int]] = {}  # mesh and rank; hosts on one machine share a mount
        for number, hosts in enumerate(self._hosts):
            self._procs.append(hosts.spawn_procs(name="remote_mount"))
            mounters = self._procs[-1].spawn("mounter", Mounter, self._origin, self._mntpoint)
            for point, place in mounters.where.call().get().items():
                serving.setdefault(place, (number, point.rank))
            self._mounters.append(mounters)
        for machine, path in serving:
            if machine == _core.machine_id():
                _check_apart(self._source, path)
        ranks = [[rank for mesh, rank in serving.values() if mesh == number] for number in range(len(self._hosts))]
        self._number = os.urandom(16).hex()
        begun = [mounters.begin.call(changed, at, self._number) for mounters, at in zip(self._mounters, ranks)]
        self.without_fuse = [why for answer in begun for why in answer.get().values() if why is not None]
        self._prefill(changed)
        if self.without_fuse:
            self._install()

    def _install(self) -> None:
        others = f" (and {len(self.without_fuse) - 1} more)" if len(self.without_fuse) > 1 else ""
        _core.log_line(
            f"remotemount: {self.without_fuse[0]}{others}. Python's workers import from it there, and read data with "
            "importlib.resources; open() and other programs do not find it"
        )
        here().mounts.append(self._number)  # of what is spawned from now on
        own = {node for procs in self._procs for node in procs._nodes}
        nodes = [node for spawned, _, _ in active.spawned() for node in _core.latest(spawned) if node not in own]
        if there := [node for node in dict.fromkeys(nodes) if _core.down_reason(node) is None]:
            installers: Any = ProcMesh(there, whole(["procs"], [len(there)]), "processes").spawn(
                "mount_installer", hook.Installer
            )
            installers._end_supervision()
            try:
                installers.install.call([self._number]).get()
            finally:
                installers.stop()

    def _prefill(self, changed: Index) -> None:
        paths = [path for path, entry in changed.items() if source.is_small(entry)]
        _all([self._origin.prefill.call_one(mounters, paths) for mounters in self._mounters])

    def refresh(self, sourcepath: str | None = None) -> None:
        """Shows what is there now: only what has changed is sent. ``RuntimeError`` if it is not open.

        ``sourcepath``: another directory, in place of the one before.
        """
        if not self._mounters:
            raise RuntimeError("this mount is not open, and cannot be refreshed: open() comes first")
        where = self._source if sourcepath is None else os.path.abspath(os.fspath(sourcepath))
        source.check(where)
        changed, gone = self._origin.scan.call_one(where).get()
        self._source = where
        if changed or gone:
            _all([mounters.change.call(changed, gone) for mounters in self._mounters])
            self._prefill(changed)

    def close(self) -> None:
        """Unmounts it everywhere, also where it is in use. Nothing, if it is not open."""
        if self._number in here().mounts:
            here().mounts.remove(self._number)
        mounters, self._mounters = self._mounters, []
        procs, self._procs = self._procs, []
        endings = [each.end.call() for each in mounters]
        for ending in [*endings, *(each.stop() for each in reversed(procs))]:
            try:
                ending.get()
            except Exception as error:  # the host is gone, and its mount with it
                logger.info("a mount of %s: %s", self._source, error)

    def __enter__(self) -> RemoteMount:
        self.open()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteMount({self._source!r} at {self._mntpoint!r} on {list(self._hosts)!r})"


def _all(answers: list[Any]) -> None:
    for answer in answers:
        answer.get()


def remotemount(host_mesh: HostMesh, sourcepath: str, mntpoint: str | None = None) -> RemoteMount:
    """A directory of this machine, to be read on hosts once :meth:`~RemoteMount.open` was called.

    Args:
        host_mesh: the hosts.
        sourcepath: a directory here.
        mntpoint: an absolute path there: of an empty directory, or one that is made; ``$SUBDIR`` in it is the host's
            place in the mesh, ``hosts_0``. None: the path that it has here, which takes hosts on other machines.

    ``TypeError`` and ``ValueError`` for other arguments.
    """
    if not isinstance(host_mesh, HostMesh):
        raise TypeError(f"remotemount takes a HostMesh, not {host_mesh!r}")
    where = os.path.abspath(os.fspath(sourcepath))
    at = where if mntpoint is None else os.fspath(mntpoint)
    if not os.path.isabs(at):
        raise ValueError(f"mntpoint must be an absolute path, since hosts have other working directories; it is {at!r}")
    return RemoteMount([host_mesh], where, os.path.normpath(at))


def _check_apart(where: str, at: str) -> None:
    inner, outer = os.path.realpath(where) + "/", os.path.realpath(at) + "/"
    if inner.startswith(outer) or outer.startswith(inner):
        raise ValueError(
            f"{where!r} cannot be mounted at {at!r} on this machine, where one would hide the other: another mntpoint "
            "is wanted"
        )
