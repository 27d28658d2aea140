"""Modules whose files have changed are loaded anew, in processes that live."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._meshes.mesh import whole
from monarch._meshes.proc_mesh import ProcMesh

__all__ = ["reload_in", "reload_modules"]


def reload_modules(paths: list[str]) -> tuple[list[str], list[str]]:
    """Loads modules of this process anew that were imported from these files; in the order in which they were.

    So a module finds what it imports as it is now. Returns names of those that were, and what went wrong, by module.
    """
    import importlib
    import linecache

    wanted = {os.path.realpath(path) for path in paths if path.endswith(".py")}
    names = {os.path.basename(path) for path in wanted}
    found = [module for module in list(sys.modules.values()) if _is_of(module, names, wanted)]
    if not found:
        return [], []
    importlib.invalidate_caches()
    linecache.checkcache()
    done: list[str] = []
    errors: list[str] = []
    for module in found:
        try:
            importlib.reload(module)
            done.append(module.__name__)
        except BaseException as error:  # sys.exit() too: the others are to be loaded
            errors.append(f"{module.__name__}: {type(error).__name__}: {error}")
    return done, errors


def _is_of(module: Any, names: set[str], wanted: set[str]) -> bool:
    if not isinstance(module, ModuleType) or module.__name__ == "__main__" or module.__spec__ is None:
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.basename(file) in names and os.path.realpath(file) in wanted


class Reloader(Actor):
    """Loads modules of its process anew."""

    @endpoint
    def reload(self, paths: list[str]) -> tuple[list[str], list[str]]:
        """As :func:`reload_modules`."""
        return reload_modules(paths)


def reload_in(nodes: list[int], job: str | None, paths: list[str]) -> None:
    """In these processes, as far as they live. ``RuntimeError`` says what could not be loaded; the rest has been."""
    there = [node for node in dict.fromkeys(_core.latest(nodes)) if _core.down_reason(node) is None]
    if not there or not paths:
        return
    procs = ProcMesh(there, whole(["procs"], [len(there)]), "processes")
    procs._job = job
    procs._unwatch()
    reloaders: Any = procs.spawn("reloader", Reloader)
    try:
        errors = [error for _, failed in reloaders.reload.call(paths).get().values() for error in failed]
    finally:
        reloaders.stop()
    if errors:
        raise RuntimeError(f"sync_workspace: the files are there, but in {len(errors)} cases not loaded: {errors[0]}")
