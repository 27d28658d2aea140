"""Actors, meshes and calls: the public names."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import monarch._wiring  # noqa: F401
from monarch._actors.actor import Actor
from monarch._actors.declarations import concurrent_endpoint, endpoint
from monarch._calls.endpoint import Endpoint, as_endpoint, send
from monarch._calls.future import Future
from monarch._errors.exceptions import ActorError, DeadlineExceeded, DeadlockError, SupervisionError
from monarch._errors.mesh_failure import MeshFailure
from monarch._meshes.actor_mesh import ActorMesh
from monarch._meshes.host_mesh import HostMesh, this_host
from monarch._meshes.proc_mesh import ProcMesh, this_proc
from monarch._ports.port import Channel, Port, PortReceiver
from monarch._public import load, publish
from monarch._running.unhandled import check_hook as _check_fault_hook
from monarch._running.unhandled import hook_changed as _hook_changed
from monarch._running.unhandled import unhandled_fault_hook
from monarch._runtime.context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
)
from monarch._runtime.deadline import deadline
from monarch._values.geometry import Extent, Point
from monarch._values.value_mesh import ValueMesh

if TYPE_CHECKING:
    from monarch._calls.accumulator import Accumulator
    from monarch._calls.python_futures import returns_future
    from monarch._calls.shutdown import shutdown_context
    from monarch._compat.old_spellings import local_proc_mesh, proc_mesh
    from monarch._config.transports import ChannelTransport
    from monarch._meshes.attachment import attach
    from monarch._meshes.controllers import get_or_spawn_controller
    from monarch._meshes.origins import Restart
    from monarch._meshes.remote_results import RemoteResult
    from monarch._meshes.stacks import dump_stacks
    from monarch._meshes.stand_ins import hosts_from_config
    from monarch._meshes.workers import (
        attach_to_workers,
        run_worker_loop_forever,
        run_worker_loop_until_shutdown,
        start_worker_loop_forever,
    )
    from monarch._processes.bootstrap import default_bootstrap_cmd
    from monarch._runtime.transport import enable_transport
    from monarch._values.identity import ProcId, Uid
    from monarch._values.stack_report import StackReport
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
    "DeadlockError",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "RemoteResult",
    "Restart",
    "StackReport",
    "SupervisionError",
    "Uid",
    "ValueMesh",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "deadline",
    "default_bootstrap_cmd",
    "dump_stacks",
    "enable_transport",
    "endpoint",
    "get_or_spawn_controller",
    "hosts_from_config",
    "local_proc_mesh",
    "proc_mesh",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "shutdown_context",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "unhandled_fault_hook",
]

# What most programs do not use, or what imports asyncio: loaded when it is asked for.
_LAZY = {
    "Accumulator": "_calls.accumulator",
    "ChannelTransport": "_config.transports",
    "ProcId": "_values.identity",
    "RemoteResult": "_meshes.remote_results",
    "Restart": "_meshes.origins",
    "StackReport": "_values.stack_report",
    "Uid": "_values.identity",
    "attach": "_meshes.attachment",
    "attach_to_workers": "_meshes.workers",
    "default_bootstrap_cmd": "_processes.bootstrap",
    "dump_stacks": "_meshes.stacks",
    "enable_transport": "_runtime.transport",
    "get_or_spawn_controller": "_meshes.controllers",
    "hosts_from_config": "_meshes.stand_ins",
    "local_proc_mesh": "_compat.old_spellings",
    "proc_mesh": "_compat.old_spellings",
    "returns_future": "_calls.python_futures",
    "run_worker_loop_forever": "_meshes.workers",
    "run_worker_loop_until_shutdown": "_meshes.workers",
    "shutdown_context": "_calls.shutdown",
    "start_worker_loop_forever": "_meshes.workers",
}

_NOT_YET = {"debug_controller", "get_meter", "span", "traced"}


publish(__name__, {name: globals()[name] for name in __all__ if name in globals()})


def __getattr__(name: str):
    if name == "config":
        return importlib.import_module("monarch.actor.config")
    return load(globals(), name, _LAZY, _NOT_YET)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Module(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "unhandled_fault_hook":
            _check_fault_hook(value)
        super().__setattr__(name, value)
        if name == "unhandled_fault_hook":
            _hook_changed()


sys.modules[__name__].__class__ = _Module
