"""Gather mounts: directories of hosts, to be read on the client."""

from __future__ import annotations

import errno
import logging
import os
import stat
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._errors.exceptions import ActorError, retold
from monarch._meshes.host_mesh import HostMesh, this_host
from monarch._mounts.kernel import Attributes
from monarch._mounts.points import Point
from monarch._mounts.subdir import places, subdir, with_subdir

if TYPE_CHECKING:
    from monarch._meshes.proc_mesh import ProcMesh

__all__ = ["GatherMount", "gather_mount"]

logger = logging.getLogger("monarch.mounts")

_ANSWER_S = 10.0
_VALID_S = 0.5  # so old may attributes be


def _place() -> str:
    """Where a path is the same one: this machine, and what is mounted there for this process."""
    return f"{_core.machine_id()}/{os.readlink('/proc/self/ns/mnt')}"


class Reader(Actor):
    """On a host: looks at its files. Answers an errno where it cannot."""

    def __init__(self, root: str) -> None:
        self._root = with_subdir(root)

    @endpoint
    def check(self, shown_on: str, shown_at: str) -> None:
        """The machine and the path where it will be seen."""
        at, below = os.path.realpath(shown_at), os.path.realpath(self._root)
        if shown_on == _place() and os.path.commonpath([at, below]) in (at, below):
            raise ValueError(f"{shown_at!r} and {self._root!r} are within each other, and would show themselves")

    @endpoint
    def attributes(self, path: str) -> Attributes | int:
        try:
            found = os.lstat(os.path.join(self._root, path)) if path else os.stat(self._root)
        except OSError as error:
            return error.errno or errno.EIO
        return Attributes(found.st_mode, found.st_size, found.st_mtime_ns)

    @endpoint
    def names(self, path: str) -> list[tuple[str, int]] | int:
        try:
            with os.scandir(os.path.join(self._root, path)) as listed:
                return [(item.name, _mode(item)) for item in listed]
        except OSError as error:
            return error.errno or errno.EIO

    @endpoint
    def read(self, path: str, offset: int, size: int) -> bytes | int:
        try:
            fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.pread(fd, size, offset)
            finally:
                os.close(fd)
        except OSError as error:
            return error.errno or errno.EIO

    @endpoint
    def target(self, path: str) -> str | int:
        try:
            return os.readlink(os.path.join(self._root, path))
        except OSError as error:
            return error.errno or errno.EIO


def _mode(item: os.DirEntry[str]) -> int:
    if item.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if item.is_dir() else stat.S_IFREG


class Gathered:
    """A directory for each host, and in it what its reader says."""

    valid_s, keeps = _VALID_S, False

    def __init__(self, readers: dict[str, Any]) -> None:
        self._readers = readers

    def attributes(self, path: str) -> Attributes:
        if not path:
            return Attributes(stat.S_IFDIR | 0o555, 0, 0)
        name, _, rest = path.partition("/")
        if name not in self._readers:
            raise FileNotFoundError(errno.ENOENT, "")
        try:
            found: Attributes = self._asked("attributes", path)
        except FileNotFoundError:
            if rest:
                raise
            return Attributes(stat.S_IFDIR | 0o555, 0, 0)  # it may be made later
        return found

    def names(self, path: str) -> list[tuple[str, int]]:
        if not path:
            return [(name, stat.S_IFDIR) for name in self._readers]
        try:
            found: list[tuple[str, int]] = self._asked("names", path)
        except FileNotFoundError:
            return []
        return found

    def read(self, path: str, offset: int, size: int) -> bytes:
        data: bytes = self._asked("read", path, offset, size)
        return data

    def target(self, path: str) -> str:
        text: str = self._asked("target", path)
        return text

    def _asked(self, what: str, path: str, *arguments: Any) -> Any:
        name, _, rest = path.partition("/")
        answer = getattr(self._readers[name], what).call_one(rest, *arguments).get(_ANSWER_S)
        if isinstance(answer, int):
            raise OSError(answer, "")
        return answer


class Gatherer(Actor):
    """On the client's machine: has them mounted. Not in the script, which could wait there for itself."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._point: Point | None = None

    @endpoint
    def begin(self, readers: dict[str, Any]) -> None:
        self._point = Point(self._path, Gathered(readers))

    @endpoint
    def end(self) -> None:
        if self._point is not None:
            self._point.close()
            self._point = None


class GatherMount:
    """Directories of hosts, mounted read-only here until :meth:`close`, or the end of ``with`` or the script."""

    def __init__(self, host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str) -> None:
        """As :func:`gather_mount`."""
        self._local = local_mount_point
        self._gatherer: Any = None
        self._procs: list[ProcMesh] = []
        try:
            self._open(host_mesh, remote_mount_point)
        except BaseException as error:
            self.close()
            if isinstance(error, ActorError):
                what = f"{remote_mount_point!r} of {host_mesh!r} cannot be shown at {local_mount_point!r}."
                raise retold(error, what) from None
            raise

    def _open(self, hosts: HostMesh, remote: str) -> None:
        self._procs.append(hosts.spawn_procs(name="gather_mount_reader"))
        readers = self._procs[0].spawn("reader", Reader, remote)
        readers.check.call(_place(), self._local).get()
        self._procs.append(this_host().spawn_procs(name="gather_mount"))
        self._gatherer = self._procs[1].spawn("gatherer", Gatherer, self._local)
        self._gatherer.begin.call_one({subdir(place): readers.slice(**place) for place in places(readers.sizes)}).get()

    def close(self) -> None:
        """Unmounts it, also where it is in use. Twice is fine."""
        gatherer, self._gatherer = self._gatherer, None
        procs, self._procs = self._procs, []
        endings = [] if gatherer is None else [gatherer.end.call()]
        for ending in [*endings, *(each.stop() for each in reversed(procs))]:
            try:
                ending.get()
            except Exception as error:  # what served it is gone, and the mount with it
                logger.info("the mount at %s: %s", self._local, error)

    def __enter__(self) -> GatherMount:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GatherMount({self._local!r})"


def gather_mount(host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str) -> GatherMount:
    """Shows a directory of each host below one here, read-only: ``hosts_0/...``, ``hosts_1/...``.

    Attributes are at most half a second old, content is what is there when it is read.

    Args:
        host_mesh: the hosts.
        remote_mount_point: an absolute path there, which need not be there yet; ``$SUBDIR`` in it is the host's place
            in the mesh, ``hosts_0``.
        local_mount_point: here: an empty directory, or one that is made.

    ``TypeError`` and ``ValueError`` for other arguments; ``ActorError`` if it cannot be mounted, which says why.
    """
    if not isinstance(host_mesh, HostMesh):
        raise TypeError(f"gather_mount takes a HostMesh, not {host_mesh!r}")
    remote = os.fspath(remote_mount_point)
    if not os.path.isabs(remote):
        raise ValueError(
            f"remote_mount_point must be an absolute path, since hosts have other working directories; it is {remote!r}"
        )
    return GatherMount(host_mesh, remote, os.path.abspath(os.fspath(local_mount_point)))
