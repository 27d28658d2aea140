"""Who wants to know of new process meshes, and which there are. For tools that sit beside a program, not in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from monarch._meshes.proc_mesh import ProcMesh

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


def note_spawned(mesh: ProcMesh) -> None:
    key = id(mesh)
    _meshes[key] = ref(mesh, lambda _: _meshes.pop(key, None))
    for callback in list(_callbacks):
        callback(mesh)
