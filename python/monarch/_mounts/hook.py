"""In a worker process: imports from a mount whose host has no FUSE (``_mounts/imports.py``)."""

from __future__ import annotations

import errno
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import itertools
import os
import pickle
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._runtime.here import here

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable, TraversableResources
else:
    from importlib.abc import Traversable, TraversableResources

__all__ = ["Installer", "install"]

LIMIT = struct.pack("ll", 40, 0)  # seconds that a host may take, longer than its own client may
_TRIES = 5  # a refresh may come while a file is read
_SUFFIXES = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.SOURCE_SUFFIXES)
_loads = itertools.count(1)


def address(mount: str, number: int) -> str:
    name = hashlib.blake2b(f"{mount} {_core.machine_id()} {number}".encode(), digest_size=16).hexdigest()
    return f"\0monarch-mount-{name}"


def check_peer(peer: socket.socket) -> None:
    """``PermissionError`` if it is another user's: abstract names are anybody's."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        raise PermissionError(errno.EPERM, "")


def below(root: str, path: str) -> str | None:
    """``path`` relative to ``root``; None: it is elsewhere."""
    path = os.path.abspath(path)
    return path[len(root) :].strip("/") if f"{path}/".startswith(f"{root.rstrip('/')}/") else None


class Mount:
    """What a process knows of a mount: whom to ask. Each question has a connection of its own, so forks may ask too."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.path: str = self.ask("where")[0]

    def ask(self, what: str, argument: Any = None) -> list[Any]:
        """``ConnectionRefusedError`` if the mount is closed, other ``OSError`` as of files."""
        with socket.socket(socket.AF_UNIX) as asked:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, LIMIT)
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
            asked.connect(self._address)
            check_peer(asked)
            with asked.makefile("rwb") as file:
                pickle.dump((what, argument), file)
                file.flush()
                answers = []
                try:
                    while (answer := pickle.load(file)) is not None:
                        if isinstance(answer, int):
                            raise OSError(answer, os.strerror(answer))
                        answers.append(answer)
                except EOFError:
                    raise OSError(errno.EIO, "the host of the mount is gone") from None
                return answers

    def look(self, paths: list[str]) -> list[Any]:
        """Attributes of each, or None."""
        found: list[Any] = self.ask("attributes", paths)[0]
        return found

    def read(self, path: str) -> bytes:
        if (inside := below(self.path, path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for _ in range(_TRIES):
            try:
                return b"".join(self.ask("read", inside))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise OSError(error.errno, error.strerror, path) from None
        raise OSError(errno.EIO, "it changes all the time", path)

    def __call__(self, entry: str) -> Finder:
        """As a hook of ``sys.path_hooks``."""
        folder = below(self.path, entry)
        if folder is None:
            raise ImportError("not below the mount point")
        return Finder(self, folder)

    def begin(self) -> None:
        self._forget()
        sys.path_hooks.insert(0, self)

    def end(self) -> None:
        if self in sys.path_hooks:
            sys.path_hooks.remove(self)
        self._forget()

    def _forget(self) -> None:
        for entry in list(sys.path_importer_cache):
            if isinstance(entry, str) and below(self.path, entry) is not None:
                sys.path_importer_cache.pop(entry, None)
        importlib.invalidate_caches()


class Finder:
    """Of one directory, as of an entry of ``sys.path`` or a package's ``__path__``."""

    def __init__(self, mount: Mount, folder: str) -> None:
        self._mount, self._folder = mount, folder

    def find_spec(self, name: str, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        where = "/".join(filter(None, (self._folder, name.rpartition(".")[2])))
        packages = [f"{where}/__init__{suffix}" for suffix in _SUFFIXES]
        candidates = [*packages, *(where + suffix for suffix in _SUFFIXES)]
        try:
            folder, *found = self._mount.look([where, *candidates])
        except ConnectionRefusedError:
            self._mount.end()
            return None
        is_folder = folder is not None and stat.S_ISDIR(folder.mode)
        path = os.path.join(self._mount.path, where)
        for candidate, attributes in zip(candidates, found):
            if attributes is not None and stat.S_ISREG(attributes.mode):
                file = os.path.join(self._mount.path, candidate)
                loader = (Source if file.endswith(".py") else Extension)(self._mount, name, file)
                locations = [path] if candidate in packages else None
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=locations
                )
        if not is_folder:
            return None
        spec = importlib.machinery.ModuleSpec(name, None)
        spec.submodule_search_locations = [path]  # a part of a namespace package
        return spec

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """For ``pkgutil``."""
        stems = {name.split(".")[0] for name in self._mount.ask("names", self._folder)[0]}
        for stem in sorted(stem for stem in stems if stem.isidentifier() and stem != "__init__"):
            spec = self.find_spec(stem)
            if spec is not None and spec.loader is not None:
                yield prefix + stem, spec.submodule_search_locations is not None


class Data(TraversableResources):
    """What loaders of both kinds have, for data beside their module."""

    def __init__(self, mount: Mount, name: str, path: str) -> None:
        self.mount, self.name, self.path = mount, name, path

    def get_filename(self, name: str | None = None) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        return self.mount.read(path)

    def get_resource_reader(self, name: str) -> Data:
        return self

    def files(self) -> Resource:
        return Resource(self.mount, os.path.dirname(self.path))


class Source(Data, importlib.abc.SourceLoader):  # type: ignore[misc]
    """A module of Python. What is compiled of it in the source directory is used if it is of this file."""

    def path_stats(self, path: str) -> dict[str, Any]:
        inside = below(self.mount.path, path)
        found = None if inside is None else self.mount.look([inside])[0]
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return {"mtime": found.mtime_ns / 1e9, "size": found.size}

    def exec_module(self, module: ModuleType) -> None:
        if (linecache := sys.modules.get("linecache")) is not None:
            linecache.cache.pop(self.path, None)  # it may be loaded anew
        super().exec_module(module)


class Extension(Data, importlib.machinery.ExtensionFileLoader):  # type: ignore[misc]
    """An extension module, loaded from a copy in memory that has no name."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        fd = os.memfd_create(os.path.basename(self.path))
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(self.mount.read(self.path))
            # another path each time, since the loader takes the same one for the same library
            other = f"{next(_loads):b}".replace("0", "/.").replace("1", "//.")
            copy = importlib.machinery.ModuleSpec(spec.name, self, origin=f"/proc/self/fd{other}/{fd}")
            module: ModuleType = super().create_module(copy)
        finally:
            os.close(fd)
        module.__file__ = self.path
        return module


class Resource(Traversable):
    """A file or directory of the mount, for ``importlib.resources``."""

    def __init__(self, mount: Mount, path: str) -> None:
        self._mount, self._path = mount, path

    @property
    def name(self) -> str:
        return os.path.basename(self._path)

    def _mode(self) -> int:
        inside = below(self._mount.path, self._path)
        found = None if inside is None else self._mount.look([inside])[0]
        return 0 if found is None else int(found.mode)

    def is_dir(self) -> bool:
        return stat.S_ISDIR(self._mode())

    def is_file(self) -> bool:
        return stat.S_ISREG(self._mode())

    def iterdir(self) -> Iterator[Resource]:
        for name in self._mount.ask("names", below(self._mount.path, self._path))[0]:
            yield self / name

    def joinpath(self, *descendants: Any) -> Resource:
        return Resource(self._mount, os.path.join(self._path, *map(os.fspath, descendants)))

    __truediv__ = joinpath

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        data = io.BytesIO(self._mount.read(self._path))
        return data if "b" in mode else io.TextIOWrapper(data, *args, **kwargs)

    def __repr__(self) -> str:
        return f"Resource({self._path!r})"


def install(mounts: Sequence[str]) -> None:
    """Those of these mounts that this machine has; and what this process spawns in turn gets them too."""
    for mount in mounts:
        if mount in here().mounts:
            continue
        here().mounts.append(mount)
        for number in itertools.count():
            try:
                found = Mount(address(mount, number))
            except OSError:  # no more of them here; FUSE does it
                break
            found.begin()


class Installer(Actor):
    """In processes that were there before the mount."""

    @endpoint
    def install(self, mounts: list[str]) -> None:
        install(mounts)
