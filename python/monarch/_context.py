"""Who runs, and what is being handled: context(), current_rank() and their kin."""

from __future__ import annotations

from contextvars import ContextVar

from monarch import _core
from monarch._geometry import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._future import Future
    from monarch._mesh import ProcMesh

__all__ = ["Context", "context", "current_actor_name", "current_rank", "current_size", "shutdown_context"]

if TYPE_CHECKING:

    class Context:
        """What is running, and what it handles: ``context()``."""

        actor_instance: ActorInstance
        message_rank: Point

else:
    Context = _core.Context

current: ContextVar[Any] = ContextVar("monarch_context")
_client: Any = None


class ActorInstance:
    """The running actor (or the client): ``context().actor_instance``."""

    def __init__(
        self,
        name: str,
        class_name: str | None,
        rank: Point,
        address: tuple[int, int],
        creator: Any,
        procs: Any,
        cell: Any = None,
    ) -> None:
        self.name = name
        self.class_name = class_name
        self.rank = rank
        self.creator = creator
        self._address = address
        self._procs = procs  # (nodes, shape, name) of the mesh that it was spawned on
        self._cell = cell

    @property
    def actor_id(self) -> str:
        node, index = self._address
        return f"{self.name}<{index:x}>@{node:016x}"

    @property
    def proc_id(self) -> str:
        return f"{self._address[0]:016x}"

    @property
    def proc_mesh(self) -> ProcMesh:
        """The whole mesh of processes that this actor was spawned on."""
        from monarch import _mesh

        return _mesh.ProcMesh._received(*self._procs) if self._procs else _mesh.this_proc()

    @property
    def proc(self) -> ProcMesh:
        """The process of this actor, as a mesh of one."""
        from monarch import _mesh

        return _mesh.this_proc()

    def stop(self, reason: str | None = None) -> None:
        """Stops this actor cleanly after the current message; later calls see ``stopped: <reason>``."""
        self._end(f"stopped: {reason}" if reason else "stopped: stopped by itself", False)

    def abort(self, reason: str | None = None) -> None:
        """Fails this actor after the current message."""
        self._end(f"actor explicitly aborted due to: {reason}", True)

    def kill(self, reason: str | None = None) -> None:
        """As :meth:`abort`."""
        self.abort(reason)

    def _end(self, reason: str, failure: bool) -> None:
        if self._cell is None:
            raise RuntimeError("only an actor can be stopped like this; the client ends with its script")
        self._cell.end(reason, failure)

    def __str__(self) -> str:
        if self.creator is None:
            return f"<{self.name}>"
        coordinates = repr(self.rank) if len(self.rank) else ""
        return f"{self.creator}.<{self.class_name} {self.name}{coordinates}>"

    def __repr__(self) -> str:
        return str(self)


class Creator:
    """Who spawned an actor, as far as the spawned one is told: enough to be named, not to be called."""

    def __init__(self, name: str, rank: Point, text: str) -> None:
        self.name = name
        self.rank = rank
        self._text = text

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def context() -> Context:
    """The current actor and message; outside of actors the client, whose runtime this starts."""
    found = current.get(None)
    if found is not None:
        return found
    return _client_context()


def _client_context() -> Any:
    from monarch import _runtime

    _runtime.ensure()
    return client_context()


def client_context() -> Any:
    """The client's own, where the runtime has been started."""
    global _client
    if _client is None:
        nothing = Extent([], [])
        root = ActorInstance("root", None, Point(0, nothing), (_core.node_id(), 0), None, None)
        _client = _core.Context(root, nothing, 0)
    return _client


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Ends the client of this process: its actors, and the processes that it has spawned. Starts at once.

    ``host_timeout`` (seconds, default 10) is how long they may take before they are killed. Afterwards no call and no
    new client is possible in this process. Without a client (in a worker too), and from the second call on, the future
    is finished and nothing happens. Runs by itself when the script ends, with 0.3 s.

    Raises ``ValueError`` for a ``host_timeout`` that is negative, not finite or 2**64 and more.
    """
    from monarch import _runtime, _task_future

    grace = _runtime.begin_shutdown(host_timeout)
    if grace is None:
        return _task_future.finished()
    return _task_future.on_thread(lambda: _runtime.shut_down(grace), "monarch-shutdown")


def current_rank() -> Point:
    """Coordinates in the mesh that the current message was sent to (a single actor of a slice sees ``{}``)."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Sizes of the mesh that the current message was sent to."""
    extent = context().message_rank.extent
    return {label: extent[label] for label in extent}


def current_actor_name() -> str:
    """The identity of the current actor, as text."""
    return str(context().actor_instance.actor_id)
