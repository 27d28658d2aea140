"""Who wants to know of new process meshes, and which there are. For tools that sit beside a program, not in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from monarch import _core
from monarch._meshes.proc_mesh import ProcMesh
from monarch._runtime.here import here

__all__ = ["get_active_proc_meshes", "register_proc_mesh_spawn_callback", "unregister_proc_mesh_spawn_callback"]

_callbacks: list[Callable[[Any], Any]] = []
_meshes: dict[int, ref[Any]] = {}  # by id; weak: a mesh lives on without its object, and the object is the user's


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], Any]) -> None:
    """From now on ``callback(procs)`` runs for each mesh that this process spawns, on the thread that spawns it.

    The processes need not be up yet. What it raises is raised by ``spawn_procs``, whose processes stay.
    """
    _callbacks.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], Any]) -> None:
    """Takes one registration of ``callback`` back; no matter if there is none."""
    if callback in _callbacks:
        _callbacks.remove(callback)


def get_active_proc_meshes() -> list[ProcMesh]:
    """The meshes that this process has spawned and not stopped, while their objects are in use; oldest first."""
    meshes = [found() for found in list(_meshes.values())]
    return [mesh for mesh in meshes if mesh is not None and not mesh._stopped]


def spawned() -> list[tuple[list[int], Any, str]]:
    """Nodes, shape and name of the meshes that this process has spawned, in use or not; oldest first."""
    return [each for each in list(here().spawned) if _is_there(each[0])]


def _is_there(nodes: list[int]) -> bool:
    return any(_core.down_reason(node) is None for node in nodes)


def note_spawned(mesh: ProcMesh) -> None:
    of = here()
    of.spawned.append((mesh._nodes, mesh._view, mesh._name))
    if len(of.spawned) > of.spawned_limit:
        of.spawned[:] = spawned()
        of.spawned_limit = max(64, 2 * len(of.spawned))
    key = id(mesh)
    _meshes[key] = ref(mesh, lambda _: _meshes.pop(key, None))
    for callback in list(_callbacks):
        callback(mesh)
