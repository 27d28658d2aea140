"""Actors, meshes and calls: the public names."""

from monarch._actor import Actor
from monarch._context import Context, context, current_actor_name, current_rank, current_size
from monarch._endpoint import Endpoint, as_endpoint, concurrent_endpoint, endpoint
from monarch._exceptions import ActorError, SupervisionError
from monarch._future import Future
from monarch._geometry import Extent, Point
from monarch._mesh import ActorMesh, HostMesh, ProcMesh, this_host, this_proc
from monarch._value_mesh import ValueMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._bootstrap import default_bootstrap_cmd
    from monarch._old_spellings import local_proc_mesh, proc_mesh

__all__ = [
    "Actor",
    "ActorError",
    "ActorMesh",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "Point",
    "ProcMesh",
    "SupervisionError",
    "ValueMesh",
    "as_endpoint",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "endpoint",
    "local_proc_mesh",
    "proc_mesh",
    "this_host",
    "this_proc",
]

# What most programs do not use, loaded when it is asked for: name -> module.
_MODULE_OF = {
    "default_bootstrap_cmd": "monarch._bootstrap",
    "local_proc_mesh": "monarch._old_spellings",
    "proc_mesh": "monarch._old_spellings",
}
_NOT_YET = {
    "Accumulator", "attach", "attach_to_workers", "Channel", "ChannelTransport", "config", "debug_controller",
    "enable_transport", "get_meter", "get_or_spawn_controller", "hosts_from_config",
    "MeshFailure", "Port", "PortReceiver", "ProcId", "returns_future", "run_worker_loop_forever",
    "run_worker_loop_until_shutdown", "send", "shutdown_context", "span", "start_worker_loop_forever", "traced", "Uid",
    "unhandled_fault_hook",
}  # fmt: skip


def __getattr__(name: str):
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
    if name in _NOT_YET:
        raise NotImplementedError(f"monarch.actor.{name} is not there yet; README.md lists what is.")
    raise AttributeError(f"module 'monarch.actor' has no attribute {name!r}")
