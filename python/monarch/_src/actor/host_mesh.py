"""See ``monarch._src``."""

from monarch._meshes.host_mesh import HostMesh, this_host
from monarch._meshes.proc_mesh import this_proc
from monarch._processes.bootstrap import BootstrapCommand, default_bootstrap_cmd
from monarch._src import later

__all__ = ["BootstrapCommand", "HostMesh", "default_bootstrap_cmd", "this_host", "this_proc"]

_LATER = ("shutdown_context", "hosts_from_config")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
