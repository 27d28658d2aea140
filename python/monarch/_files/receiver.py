"""Makes folders below ``$WORKSPACE_DIR`` the same as those of a client. All is written beside first, then put in place.

Next to the folders is ``.monarch``, which no folder can be called: a lock, an index of hashes, and what is on its way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
import time
from typing import NamedTuple

from monarch._files.conda import Prefix, rewrite
from monarch._files.places import check_entry, check_name, identities
from monarch._files.tree import Entry, Index, Tree, hash_file, walk

__all__ = ["Outcome", "Part", "Receiver"]

_LOCK_S = 60.0  # how long another one that writes there is waited for
_LOOK_S = 0.02
_CLAIM_S = 24 * 3600.0  # after which what has been left behind is nobody's any more


class Part(NamedTuple):
    """Of a file: so much of it, from an offset on."""

    tree: int
    path: bytes
    offset: int
    data: bytes
    final: Entry | None  # with the last one: what the file is
    mtime_ns: int = 0
    is_gone: bool = False  # it is there no more


class Outcome(NamedTuple):
    """What has been done on a host."""

    changed: list[str]  # files that are there or others now, as paths
    deleted: int


class Receiver:
    """Of one client, for one time: :meth:`claim`, :meth:`compare`, any number of :meth:`put`, :meth:`commit`."""

    def __init__(self, root: str) -> None:
        """Writes below ``root``, and nowhere else."""
        self.root = os.path.abspath(root)
        self._own = os.path.join(self.root, ".monarch")
        self._lock: int | None = None
        self._claim: str | None = None
        self._places: list[_Place] = []

    def claim(self, number: str) -> bool:
        """Whether this is the first one of that number here: of hosts that share a folder one writes."""
        os.makedirs(self._own, mode=0o700, exist_ok=True)
        for left in glob.glob(os.path.join(glob.escape(self._own), "claim-*")):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(left).st_mtime < time.time() - _CLAIM_S:
                    os.unlink(left)
        path = os.path.join(self._own, f"claim-{number}")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        self._claim = path
        return True

    def check_apart(self, sources: list[tuple[str, list[tuple[int, int]]]], names: list[str]) -> None:
        """``ValueError`` if a folder would be written into itself, or over itself.

        Args:
            sources: of this machine: the path of each, and :func:`identities` of it.
            names: what they are to be here.
        """
        for name in names:
            place = identities(os.path.join(self.root, name))
            for path, source in sources:
                if source[0] in place or (place and place[0] in source and self._exists(name)):
                    raise ValueError(
                        f"{path!r} and its copy would be inside of each other: WORKSPACE_DIR is {self.root!r} there, "
                        "and must be elsewhere"
                    )

    def _exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.root, name))

    def compare(self, trees: list[Tree]) -> list[list[bytes]]:
        """Which files of each it lacks, or has otherwise. Nobody else writes here from now on, until :meth:`end`."""
        self._take_lock()
        for left in glob.glob(os.path.join(glob.escape(self._own), "staging-*")):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._places = [_Place(self.root, self._own, number, tree) for number, tree in enumerate(trees)]
        return [place.compare() for place in self._places]

    def put(self, parts: list[Part]) -> None:
        """Writes them beside. Of files that it has not asked for nothing is kept."""
        for part in parts:
            self._places[part.tree].put(part)

    def commit(self) -> Outcome:
        """Puts all in place. ``OSError`` before that leaves what was there."""
        for place in self._places:
            place.check_complete()
        done = [place.commit() for place in self._places]
        self.end()
        return Outcome([path for each in done for path in each.changed], sum(each.deleted for each in done))

    def end(self) -> None:
        """Lets go of what is on its way, and of the lock."""
        for place in self._places:
            place.end()
        self._places = []
        if self._claim is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._claim)
            self._claim = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        self._lock = os.open(os.path.join(self._own, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(
                        errno.ETIMEDOUT, f"another sync_workspace has been writing there for {_LOCK_S:g} s", self.root
                    ) from None
            time.sleep(_LOOK_S)


class _Place:
    """One folder."""

    def __init__(self, root: str, own: str, number: int, tree: Tree) -> None:
        check_name(tree.name)
        self._entries = dict(tree.entries)
        for path, entry in self._entries.items():
            check_entry(path, entry, self._entries)
        self._outer, self._prefix = tree.outer, tree.prefix
        self._root, self._name = os.fsencode(root), os.fsencode(tree.name)
        self._path = os.path.join(self._root, self._name)
        self._staging = os.path.join(os.fsencode(own), b"staging-%d" % number)
        self._index = Index(os.path.join(own, tree.name.replace("%", "%25").replace("/", "%2f") + ".index"))
        self._wanted: dict[bytes, bytes] = {}  # by path: where it is written beside
        self._complete: dict[bytes, int] = {}  # mtime_ns
        self._modes: list[bytes] = []  # of what is right but for its permissions
        self._out: tuple[bytes, int] | None = None  # that is being written, and its handle

    def compare(self) -> list[bytes]:
        os.makedirs(self._staging, mode=0o700)
        real = {b""} if self._is_real_folder() else set()
        for path, entry in self._entries.items():
            try:
                if path.rpartition(b"/")[0] not in real:
                    raise FileNotFoundError
                of = os.lstat(os.path.join(self._path, path))
            except FileNotFoundError:
                of = None
            if entry.kind == "d":
                if of is not None and stat.S_ISDIR(of.st_mode):
                    real.add(path)
            elif entry.kind == "f" and not self._has(path, entry, of):
                self._wanted[path] = os.path.join(self._staging, b"%d" % len(self._wanted))
        return list(self._wanted)

    def _is_real_folder(self) -> bool:
        """And so are those between it and the workspace."""
        at = self._root
        for part in self._name.split(b"/"):
            at = os.path.join(at, part)
            if not os.path.isdir(at) or os.path.islink(at):
                return False
        return True

    def _is_rewritten(self, path: bytes) -> bool:
        return self._prefix is not None and (path in self._prefix.text or path in self._prefix.binary)

    def _has(self, path: bytes, entry: Entry, of: os.stat_result | None) -> bool:
        rewritten = self._is_rewritten(path)  # the index has the hash of what it was made of
        if of is None or not stat.S_ISREG(of.st_mode) or (of.st_size != entry.size and not rewritten):
            return False
        digest = self._index.get(path, of)
        if digest is None and rewritten:
            return False
        if digest is None:
            of, digest = hash_file(os.path.join(self._path, path))
            self._index.put(path, of, digest)
        if digest == entry.content and of.st_mode & 0o777 != entry.mode:
            self._modes.append(path)
        return digest == entry.content

    def put(self, part: Part) -> None:
        if part.path not in self._wanted:
            return
        beside = self._wanted[part.path]
        if part.is_gone:
            self._let_go_of_out()
            del self._wanted[part.path], self._entries[part.path]
            return
        if self._out is None or self._out[0] != beside or part.offset == 0:
            self._let_go_of_out()
            flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if part.offset else os.O_TRUNC)
            self._out = beside, os.open(beside, flags, 0o600)
        try:
            _write(self._out[1], part.data, part.offset)
        except OSError as error:
            where = os.fsdecode(os.path.join(self._path, part.path))
            raise OSError(error.errno, f"{error.strerror}; the files there are as they were", where) from None
        if part.final is not None:
            if os.fstat(self._out[1]).st_size != part.final.size:
                raise OSError(errno.EIO, "not all of it has come", os.fsdecode(part.path))
            if self._prefix is not None and self._is_rewritten(part.path):
                self._rewrite(part.path, self._out, self._prefix)
            os.fchmod(self._out[1], part.final.mode)
            os.utime(self._out[1], ns=(part.mtime_ns, part.mtime_ns))
            self._entries[part.path] = part.final
            self._complete[part.path] = part.mtime_ns
            self._let_go_of_out()

    def _rewrite(self, path: bytes, out: tuple[bytes, int], prefix: Prefix) -> None:
        with open(out[0], "rb") as file:
            data = rewrite(file.read(), prefix, path, self._path)
        _write(out[1], data, 0)
        os.ftruncate(out[1], len(data))

    def check_complete(self) -> None:
        for path in self._wanted:
            if path not in self._complete:
                raise OSError(errno.EIO, "not all of it has come", os.fsdecode(path))

    def commit(self) -> Outcome:
        self._make_folders()
        for path, beside in self._wanted.items():
            self._put_in_place(path, beside)
        changed = list(self._wanted)
        for path, entry in self._entries.items():
            if entry.kind == "l" and self._link(path, entry.content):
                changed.append(path)
        for path in self._modes:
            os.chmod(os.path.join(self._path, path), self._entries[path].mode)
        deleted = self._delete()
        for path, entry in reversed(self._entries.items()):
            where = os.path.join(self._path, path)
            if entry.kind == "d" and stat.S_IMODE(os.lstat(where).st_mode) != entry.mode:
                os.chmod(where, entry.mode)
        self._index.settle(sum(self._entries[path].size for path in self._wanted))
        for path in [*self._wanted, *self._modes]:
            self._index.put(path, os.lstat(os.path.join(self._path, path)), self._entries[path].content)
        self._index.save()
        return Outcome([os.fsdecode(os.path.join(self._path, path)) for path in changed], deleted)

    def _make_folders(self) -> None:
        at = self._root
        for part in self._name.split(b"/"):
            at = os.path.join(at, part)
            _make_folder(at)
        for path, entry in self._entries.items():
            if entry.kind == "d":
                _make_folder(os.path.join(self._path, path))

    def _put_in_place(self, path: bytes, beside: bytes) -> None:
        where = os.path.join(self._path, path)
        if os.path.isdir(where) and not os.path.islink(where):
            shutil.rmtree(where)
        os.rename(beside, where)
        _forget_compiled(where)

    def _link(self, path: bytes, leads_to: bytes) -> bool:
        where = os.path.join(self._path, path)
        with contextlib.suppress(OSError):
            if os.readlink(where) == leads_to:
                return False
        beside = os.path.join(self._staging, b"link")
        os.symlink(leads_to, beside)
        self._put_in_place(path, beside)
        return True

    def _delete(self) -> int:
        """What is there, not left out and not to be there; what is left out stays, with the folders that it is in."""
        extra = [(path, found) for path, found in walk(self._path, self._outer) if path not in self._entries]
        deleted = 0
        for path, found in extra:
            if found.is_dir(follow_symlinks=False):
                _make_folder(os.path.join(self._path, path))
        for path, found in reversed(extra):
            where = os.path.join(self._path, path)
            if not found.is_dir(follow_symlinks=False):
                _forget_compiled(where)
                os.unlink(where)
                deleted += 1
                continue
            shutil.rmtree(os.path.join(where, b"__pycache__"), ignore_errors=True)
            try:
                os.rmdir(where)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        return deleted

    def _let_go_of_out(self) -> None:
        if self._out is not None:
            os.close(self._out[1])
            self._out = None

    def end(self) -> None:
        self._let_go_of_out()
        shutil.rmtree(self._staging, ignore_errors=True)


def _write(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


def _make_folder(path: bytes) -> None:
    """One of its own, that may be written to: a file or a link in its place goes."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            if mode & 0o700 != 0o700:
                os.chmod(path, stat.S_IMODE(mode) | 0o700)
            return
        os.unlink(path)
    os.mkdir(path, 0o755)


def _forget_compiled(path: bytes) -> None:
    """What was compiled of a module goes with it: by its time and size alone a new one may look like the old."""
    if not path.endswith(b".py"):
        return
    folder, name = os.path.split(path)
    compiled = os.path.join(folder, b"__pycache__")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for left in os.listdir(compiled):
            if left.startswith(name[:-2]) and left.endswith(b".pyc"):
                os.unlink(os.path.join(compiled, left))
