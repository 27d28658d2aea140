"""Who runs, and what is being handled: context(), current_rank() and their kin."""

from __future__ import annotations

from contextvars import ContextVar

from monarch import _core
from monarch._geometry import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._future import Future
    from monarch._identity import ActorAddr
    from monarch._mesh import ProcMesh
    from monarch._port import Mailbox

__all__ = ["Context", "context", "current_actor_name", "current_rank", "current_size", "shutdown_context"]

if TYPE_CHECKING:

    class Context:
        """What is running, and what it handles: what ``context()`` returns."""

        actor_instance: ActorInstance
        """The actor whose code this is; outside of actors the client."""
        message_rank: Point
        """As ``current_rank()``."""

else:
    Context = _core.Context

current: ContextVar[Any] = ContextVar("monarch_context")
_client: Any = None


class ActorInstance:
    """The running actor, or outside of actors the client: ``context().actor_instance``.

    ``name`` is that of the spawn, ``class_name`` is ``module.Qualname`` (None for the client), ``rank`` the ``Point``
    in the mesh that it was spawned in, whatever slice a message came through. ``creator`` has ``name`` and ``rank`` of
    who spawned it (None for the client). ``str()`` is the chain of who made whom.
    """

    def __init__(
        self,
        name: str,
        class_name: str | None,
        rank: Point,
        creator: Any,
        procs: Any,
        cell: Any = None,
        substitutes: Any = (),
    ) -> None:
        self.name = name
        self.class_name = class_name
        self.rank = rank
        self._creator = creator  # as spawn_info() tells it, until somebody asks
        self._procs = procs  # ProcMesh._parts() of the mesh that it was spawned on
        self._cell = cell
        self._substitutes = substitutes  # of patch_actor, in force when it was spawned
        self._owned: Any = None  # _owned.Owned, once it has spawned something; the client ends with all of its job

    @property
    def creator(self) -> Creator | None:
        """Who spawned it, with ``name`` and ``rank``; None for the client."""
        told = self._creator
        if type(told) is tuple:
            name, rank, labels, sizes, text = told
            told = self._creator = Creator(name, Point(rank, Extent(labels, sizes)), text)
        return told

    @property
    def _address(self) -> tuple[int, int]:
        return _core.node_id(), 0 if self._cell is None else self._cell.index

    @property
    def _local(self) -> int:
        """``ProcMesh._local`` of the mesh that it was spawned on."""
        return self._procs[7] if self._procs and len(self._procs) > 7 else 0

    @property
    def actor_id(self) -> ActorAddr:
        """Name, number and process of this incarnation; unique. A ``str``, which also tells its parts."""
        from monarch._identity import ActorAddr

        node, index = self._address
        return ActorAddr(f"{self.name}<{index:x}>@{node:016x}")

    @property
    def proc_id(self) -> str:
        """The process; unique for each incarnation."""
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

    @property
    def mailbox(self) -> Mailbox:
        """Opens ports at this actor, among them such as fold what is sent to them."""
        from monarch._port import Mailbox

        return Mailbox()

    _mailbox = mailbox

    def stop(self, reason: str | None = None) -> None:
        """Stops this actor cleanly after the current message; later calls see ``stopped: <reason>``.

        The client cannot: ``RuntimeError``. So for ``abort`` and ``kill``.
        """
        self._end(f"stopped: {reason}" if reason else "stopped: stopped by itself", False)

    def abort(self, reason: str | None = None) -> None:
        """Fails this actor after the current message; later calls see the reason, as a failure."""
        self._end(f"actor explicitly aborted due to: {reason}", True)

    def kill(self, reason: str | None = None) -> None:
        """As ``abort``."""
        self.abort(reason)

    def _own(self, mesh: Any) -> None:
        """What this actor has spawned ends with it."""
        if self._cell is None:
            return
        if self._owned is None:
            from monarch._owned import Owned

            self._owned = Owned()
        self._owned.add(mesh)

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
    """The current actor and message; outside of actors the client, whose runtime this starts.

    Right in every kind of endpoint, after any number of awaits, in tasks made there, and in a thread that runs in
    ``contextvars.copy_context()``.
    """
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
        _core.node_id()  # raises if this process has no client any more
        nothing = Extent([], [])
        root = ActorInstance("root", None, Point(0, nothing), None, None)
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
