"""Actors, meshes and calls: the public names."""

from monarch._actor import Actor
from monarch._context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
    shutdown_context,
)
from monarch._controllers import get_or_spawn_controller
from monarch._deadline import deadline
from monarch._endpoint import Endpoint, as_endpoint, concurrent_endpoint, endpoint, send
from monarch._exceptions import ActorError, DeadlineExceeded, SupervisionError
from monarch._future import Future
from monarch._geometry import Extent, Point
from monarch._host_mesh import HostMesh, this_host
from monarch._mesh import ActorMesh, ProcMesh, this_proc
from monarch._port import Channel, Port, PortReceiver
from monarch._value_mesh import ValueMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._accumulator import Accumulator
    from monarch._bootstrap import default_bootstrap_cmd
    from monarch._hosts import hosts_from_config
    from monarch._identity import ProcId, Uid
    from monarch._old_spellings import local_proc_mesh, proc_mesh
    from monarch._task_future import returns_future
    from monarch._transport import ChannelTransport, enable_transport
    from monarch.actor import config

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "Channel",
    "ChannelTransport",
    "Context",
    "DeadlineExceeded",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "SupervisionError",
    "Uid",
    "ValueMesh",
    "as_endpoint",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "deadline",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_or_spawn_controller",
    "hosts_from_config",
    "local_proc_mesh",
    "proc_mesh",
    "returns_future",
    "send",
    "shutdown_context",
    "this_host",
    "this_proc",
]

# What most programs do not use, or what imports asyncio and more: loaded when it is asked for.
_LAZY = {
    "Accumulator": "_accumulator",
    "ChannelTransport": "_transport",
    "ProcId": "_identity",
    "Uid": "_identity",
    "default_bootstrap_cmd": "_bootstrap",
    "enable_transport": "_transport",
    "hosts_from_config": "_hosts",
    "local_proc_mesh": "_old_spellings",
    "proc_mesh": "_old_spellings",
    "returns_future": "_task_future",
}

_NOT_YET = {
    "attach", "attach_to_workers", "debug_controller", "get_meter", "MeshFailure",
    "run_worker_loop_forever", "run_worker_loop_until_shutdown", "span", "start_worker_loop_forever", "traced",
    "unhandled_fault_hook",
}  # fmt: skip


def __getattr__(name: str):
    if name in _LAZY:
        import importlib

        found = globals()[name] = getattr(importlib.import_module(f"monarch.{_LAZY[name]}"), name)
        return found
    if name == "config":
        import importlib

        return importlib.import_module("monarch.actor.config")
    if name in _NOT_YET:
        from monarch._not_yet import not_yet

        raise not_yet(f"monarch.actor.{name}")
    raise AttributeError(f"module 'monarch.actor' has no attribute {name!r}")
