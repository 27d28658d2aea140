"""See ``monarch._src``."""

from monarch._actors.actor import Actor
from monarch._calls.endpoint import as_endpoint
from monarch._errors.exceptions import ActorError
from monarch._meshes.actor_mesh import ActorMesh
from monarch._ports.port import Channel, Port, PortReceiver, RankedPortReceiver
from monarch._runtime.context import Context, context, current_actor_name, current_rank, current_size
from monarch._runtime.context import current as _context  # noqa: F401  # a ContextVar; programs read it
from monarch._src import later
from monarch._values.geometry import Extent, Point
from monarch._values.value_mesh import ValueMesh

__all__ = [
    "Actor",
    "ActorError",
    "ActorMesh",
    "Channel",
    "Context",
    "Extent",
    "Point",
    "Port",
    "PortReceiver",
    "RankedPortReceiver",
    "ValueMesh",
    "as_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
]

_LATER = ("Accumulator", "send")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
