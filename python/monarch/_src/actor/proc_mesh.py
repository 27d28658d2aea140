"""See ``monarch._src``."""

from monarch._compat.old_spellings import local_proc_mesh, proc_mesh
from monarch._meshes.active import (
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    unregister_proc_mesh_spawn_callback,
)
from monarch._meshes.host_mesh import HostMesh
from monarch._meshes.proc_mesh import ProcMesh
from monarch._src import later

__all__ = [
    "HostMesh",
    "ProcMesh",
    "get_active_proc_meshes",
    "local_proc_mesh",
    "proc_mesh",
    "register_proc_mesh_spawn_callback",
    "unregister_proc_mesh_spawn_callback",
]

_LATER = ("get_or_spawn_controller",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
