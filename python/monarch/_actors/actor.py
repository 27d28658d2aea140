"""The base class of actors."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from monarch._values.mesh_trait import MeshTrait, Undefined

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from monarch._calls.future import Future

__all__ = ["Actor"]

_LOGGER = "<logger>"  # in an actor's dictionary, where no attribute of its class can be


class Actor(MeshTrait, metaclass=ABCMeta):
    """Base class of actors. Instances exist only through ``procs.spawn(name, Class, ...)``: one per process.

    Constructor, endpoints and hooks run in the target process, all on the actor's own thread, one after the other
    (``concurrent_endpoint`` is the exception). Optional hooks:

    - ``__cleanup__(self, exc)``, ``def`` or ``async def``, when it ends: ``exc`` is None after a stop, else the cause.
      The actors and processes that it has spawned have ended by then.
      It has 3 s when its process is stopped, 0.3 s when the script ends, and is not called after a crash.
    - ``__supervise__(self, failure: MeshFailure) -> bool``, ``def`` or ``async def``: a rank of what this actor has
      spawned has failed. A true answer says that it is dealt with; without one this actor fails too, and its owner is
      asked. Asked once for each failed rank, one after the other: between messages, in async actors also while an
      endpoint awaits. Actors without this hook fail with what they own, unless a call of theirs raises it, or will.
    - ``_handle_undeliverable_message(self, message) -> bool`` for one-way messages of this actor that found nobody;
      unless it returns true, this actor fails.

    The mesh methods that it inherits are for type checkers, to which a spawned mesh is an instance of the class; on an
    instance they raise ``NotImplementedError``.
    """

    @property
    def logger(self) -> logging.Logger:
        """A ``logging.Logger`` named after the class, level DEBUG; the same one at each look."""
        import logging

        found = self.__dict__.get(_LOGGER)
        if found is None:
            found = self.__dict__[_LOGGER] = logging.getLogger(type(self).__name__)
            found.setLevel(logging.DEBUG)
        return found

    if not TYPE_CHECKING:
        _shape = Undefined("an actor is not a mesh: the mesh methods belong to what spawn() returns")

    def __supervise__(self, failure: Any) -> Any:
        """Asked about failures of what this actor owns: a true value says that it is dealt with."""

    def __cleanup__(self, exc: Exception | None) -> Any:
        """The last that runs of this actor."""

    def _handle_undeliverable_message(self, message: Any) -> Any:
        """Asked about one-way messages of this actor that found nobody: True says that it is dealt with."""
        return False

    @property
    def initialized(self) -> Future[None]:
        """Of meshes only; on an actor ``NotImplementedError``."""
        raise NotImplementedError("an actor is not a mesh: `initialized` belongs to what spawn() returns")

    if TYPE_CHECKING:

        def respawn(self, ranks: int | Sequence[int] | None = None) -> Future[None]:
            """Of meshes only: ``ActorMesh.respawn``."""

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Of meshes only; on an actor ``NotImplementedError``."""
        raise NotImplementedError(
            "an actor is not a mesh: stop() belongs to what spawn() returns; an actor ends itself with "
            "context().actor_instance.stop()"
        )
