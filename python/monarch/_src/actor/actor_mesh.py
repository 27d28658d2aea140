"""See ``monarch._src``."""

from monarch._actor import Actor
from monarch._context import Context, context, current_actor_name, current_rank, current_size
from monarch._context import current as _context  # noqa: F401  # a ContextVar; programs read it
from monarch._endpoint import as_endpoint
from monarch._exceptions import ActorError
from monarch._geometry import Extent, Point
from monarch._mesh import ActorMesh
from monarch._port import Channel, Port, PortReceiver, RankedPortReceiver
from monarch._src import later
from monarch._value_mesh import ValueMesh

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
