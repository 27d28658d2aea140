"""Who runs, and what is being handled: context(), current_rank() and their kin."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._runtime import runtime
from monarch._runtime.here import here
from monarch._values.geometry import Point

if TYPE_CHECKING:
    from monarch._meshes.instance import ActorInstance

__all__ = ["Context", "context", "current_actor_name", "current_rank", "current_size"]

if TYPE_CHECKING:

    class Context:
        """What is running, and what it handles: what ``context()`` returns."""

        actor_instance: ActorInstance
        """The actor whose code this is; outside of actors the client."""
        message_rank: Point
        """As ``current_rank()``."""
        epoch: int
        """How often some of the mesh of this actor had been made anew when the message was sent, as its sender knew.

        The same for all ranks of a call. In a constructor: 0 when the actor is made first, else it is made anew.
        """

else:
    Context = _core.Context

current: ContextVar[Any] = ContextVar("monarch_context")
in_client: ContextVar[bool] = ContextVar("monarch_in_client", default=False)  # has this thread or task used the client?
_make_client: Callable[[], Any] | None = None


def context() -> Context:
    """The current actor and message; outside of actors the client, whose runtime this starts.

    Right in every kind of endpoint, after any number of awaits, in tasks made there, and in a thread that runs in
    ``contextvars.copy_context()``.
    """
    found = current.get(None)
    if found is not None:
        return found
    return client_context()


def client_context() -> Any:
    """The client's own."""
    runtime.ensure()
    if not in_client.get():
        in_client.set(True)
    of = here()
    if of.client is None:
        _core.node_id()  # raises if this process has no client any more
        assert _make_client is not None
        of.client = _make_client()
    return of.client


def provide_client(make: Callable[[], Any]) -> None:
    """``make()`` gives the context of a client, when one is needed first."""
    global _make_client
    _make_client = make


def forget_client() -> None:
    """It has ended."""
    here().client = None


def current_rank() -> Point:
    """Rank and coordinates in the mesh that the current message was sent to; in a constructor, the spawned mesh.

    A slice counts anew: a single actor, picked by ints, sees ``{}`` and rank 0. So does the client.
    """
    return context().message_rank


def current_size() -> dict[str, int]:
    """The sizes of the mesh that the current message was sent to, by label; ``{}`` for the client."""
    extent = context().message_rank.extent
    return {label: extent[label] for label in extent}


def current_actor_name() -> str:
    """The ``actor_id`` of the current actor: unique for each incarnation."""
    return str(context().actor_instance.actor_id)
