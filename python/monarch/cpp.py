"""C++ actors from Python: load a shared library that registers some (MONARCH_ACTOR), spawn them like any others.

    counters = monarch.cpp.load("build/libcounters.so")
    mesh = procs.spawn("counters", counters.Counter, 0)
    mesh.add.call(1).get()

C++ code builds against this package with CMake's ``find_package(Monarch)``, which is told where it is:

    cmake -S . -B build -DMonarch_ROOT=$(python -m monarch.cpp --cmake-dir)

Endpoints and constructors of C++ actors take positional arguments that are None, bool, int (64 bits), float, str,
bytes, or tuples, lists and dicts of them. An exception in one arrives as ``ActorError``.
"""

from __future__ import annotations

from typing import Any

from monarch import _core
from monarch._runtime import runtime

__all__ = ["Library", "cmake_dir", "load"]


class _NativeTable:
    """What ClassTable is for a Python class (``_endpoint``)."""

    native = True

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.endpoints = set(names)
        self.numbers = {name: number for number, name in enumerate(names)}
        self.ranges = [(0, 1 << 30)] * len(names)  # the C++ signature is checked where the actor runs


class _NativeClass:
    """Stands for a C++ actor class; an argument of ``ProcMesh.spawn``."""

    def __init__(self, name: str, library: str, names: list[str], content: bytes, source: int = 0) -> None:
        """``content``: the hash of the library. ``source``: the process that has loaded it; 0: this one."""
        self.__name__ = self.__qualname__ = name
        self.__module__ = "cpp"
        self._library = library
        self._native_table = _NativeTable(names)
        self._content = content
        self._source = source

    def _reference(self) -> tuple[str, str, bytes, int]:
        """What a spawn says of it, once the runtime is there (``src/monarch/actor/libraries.h``)."""
        return self.__name__, self._library, self._content, self._source or _core.node_id()

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source or (_core.node_id() if runtime.is_started() else 0)
        return _NativeClass, (self.__name__, self._library, self._native_table.names, self._content, source)

    def __repr__(self) -> str:
        return f"<C++ actor class {self.__name__} of {self._library}>"


class Library:
    """The actor classes of one shared library, as attributes; an unknown one is an ``AttributeError``."""

    def __init__(self, path: str, names: list[str], content: bytes) -> None:
        self._path = path
        for name in names:
            methods = _core.native_methods(name)
            assert methods is not None
            setattr(self, name, _NativeClass(name, path, methods, content))

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(label for label in vars(self) if not label.startswith("_")) or "none"
        raise AttributeError(f"{self._path} registers no C++ actor class {name!r} (it registers: {known})")


_loaded: dict[str, Library] = {}


def load(path: str) -> Library:
    """Loads a shared library here, and in each process that its actors are spawned on, on whatever host.

    There the file at the same ``path`` is taken if it has the same content. Otherwise this process sends the library,
    also when the file is gone here by then, and that one keeps it in memory; what it is linked with must be there.

    One that cannot be loaded is a ``RuntimeError``, or in another process what calls to its actors raise. Loading again
    gives the same object. A file that is overwritten after it was loaded, rather than replaced, can be sent no more.
    """
    import os

    full = os.path.abspath(path)
    if full not in _loaded:
        _loaded[full] = Library(full, *_core.load_actor_library(full))
    return _loaded[full]


def cmake_dir() -> str:
    """The folder with ``MonarchConfig.cmake``, for ``Monarch_ROOT``. A checkout has it once it is built."""
    import os

    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "cmake")


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(prog="python -m monarch.cpp")
    parser.add_argument("--cmake-dir", action="store_true", required=True, help="print what Monarch_ROOT has to be")
    parser.parse_args()
    print(cmake_dir())
