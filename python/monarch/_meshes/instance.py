"""The running actor, as its own code sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._meshes.owned import Owned
from monarch._meshes.proc_mesh import ProcMesh, this_proc
from monarch._meshes.spawning import ProcMeshParts, SpawnerInfo
from monarch._ports.mailbox import Mailbox
from monarch._values.geometry import Extent, Point

if TYPE_CHECKING:
    from monarch._values.identity import ActorAddr

__all__ = ["ActorInstance", "Creator"]


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
        self._creator = creator  # SpawnerInfo as it came, until somebody asks
        self._procs = procs  # ProcMeshParts of the mesh that it was spawned on
        self._cell = cell
        self._substitutes = substitutes  # of patch_actor, in force when it was spawned
        self._owned: Any = None  # Owned, once it has spawned something; the client ends with all of its job

    @property
    def creator(self) -> Creator | None:
        """Who spawned it, with ``name`` and ``rank``; None for the client."""
        told = self._creator
        if type(told) is tuple:
            info = SpawnerInfo(*told)
            told = self._creator = Creator(info.name, Point(info.rank, Extent(info.labels, info.sizes)), info.text)
        return told

    @property
    def _address(self) -> tuple[int, int]:
        return _core.node_id(), 0 if self._cell is None else self._cell.index

    @property
    def _local(self) -> int:
        """``ProcMesh._local`` of the mesh that it was spawned on."""
        return ProcMeshParts(*self._procs).local if self._procs else 0

    @property
    def actor_id(self) -> ActorAddr:
        """Name, number and process of this incarnation; unique. A ``str``, which also tells its parts."""
        from monarch._values.identity import ActorAddr

        node, index = self._address
        return ActorAddr(f"{self.name}<{index:x}>@{node:016x}")

    @property
    def proc_id(self) -> str:
        """The process; unique for each incarnation."""
        return f"{self._address[0]:016x}"

    @property
    def proc_mesh(self) -> ProcMesh:
        """The whole mesh of processes that this actor was spawned on."""
        return ProcMesh._received(*self._procs) if self._procs else this_proc()

    @property
    def proc(self) -> ProcMesh:
        """The process of this actor, as a mesh of one."""
        return this_proc()

    @property
    def mailbox(self) -> Mailbox:
        """Opens ports at this actor, among them such as fold what is sent to them."""
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

    def set_system(self) -> None:
        """For programs that mark actors of a library as such; it has no effect here."""

    def _own(self, mesh: Any) -> None:
        """What this actor has spawned ends with it."""
        if self._cell is None:
            return
        if self._owned is None:
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


def client() -> Any:
    """The context of a client of this process."""
    nothing = Extent([], [])
    root = ActorInstance("root", None, Point(0, nothing), None, None)
    return _core.Context(root, nothing, 0)
