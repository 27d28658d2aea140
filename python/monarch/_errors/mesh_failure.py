"""What an owner is told when something that it owns has failed."""

from __future__ import annotations

from typing import Any, NoReturn

from monarch import _core
from monarch._errors.record import FailureRecord, Recorded

__all__ = ["MeshFailure"]


class MeshFailure(Recorded):
    """One rank of a mesh has failed: the argument of ``__supervise__`` and ``unhandled_fault_hook``. No exception.

    ``mesh_name`` is the name that the mesh, of actors or of processes, was spawned with, ``crashed_ranks`` the list of
    the one rank that this is about, ``coordinates`` its place, one number for each dimension. ``report()`` says in
    words who has failed and of what, ``cause`` only of what, ``origin`` in a line what it all began with, and ``kind``
    in a few words: "killed by signal 9". ``pid`` and ``host``, the machine, are those of its process. Where that has
    ended: its ``exit_code`` or ``signal``, ``in_flight``, ``last_lines``, ``stack`` and ``out_of_memory``, as of
    ``SupervisionError``.
    """

    def __init__(
        self,
        mesh_name: str,
        rank: int,
        coordinates: tuple[int, ...],
        who: str,
        report: str,
        cause: str,
        origin: str,
        is_procs: bool,
        node: int,
        actor: int,
        record: tuple[Any, ...],
        mesh_id: int = 0,
        made_ns: int = 0,
    ) -> None:
        self.mesh_name = mesh_name
        self.crashed_ranks = [rank]
        self.coordinates = coordinates
        self.cause = cause
        self.origin = origin
        self.mesh = ()  # as in the reference, where it is that always
        self._record = FailureRecord(*record)
        self._take(self._record)
        self._report = report
        self._event = f"{'process' if is_procs else 'actor'} {who} failed:"
        self._source = node, actor  # whose failure it is: an actor's, or (0) its process's
        self._mesh_id = mesh_id
        self._made_ns = made_ns  # when that was last made anew

    @property
    def kind(self) -> str:
        """How the process ended, or what the actor raised."""
        if ended := self._record.how_it_ended():
            return ended
        before, not_started, after = self.origin.partition(" could not be started (")
        if not_started and before.startswith("the "):
            return f"could not be started: {after.partition('): ')[2]}"
        return self.origin.partition(" failed: ")[2] or self.origin

    def report(self) -> str:
        """Who has failed, and of what: several lines, with a traceback where there is one."""
        return self._report

    def is_told(self, at_the_end: bool = False) -> bool:
        """Somebody has just seen it as an exception, or at the end has named the call that raises it."""
        told: bool = _core.is_told(*self._source, self._made_ns, at_the_end)
        return told

    def is_current(self) -> bool:
        """What has failed has not been made anew since."""
        current: bool = _core.is_current(self._mesh_id, self.crashed_ranks[0])
        return current

    def climb(self, cell: Any) -> None:
        """Its owner fails with it."""
        cell.end(self._report, True, self.origin)

    def handled(self) -> None:
        """It need not be said on stderr."""
        _core.note_handled(self._source[0])

    def __str__(self) -> str:
        cause = self.cause.replace("\n", "\n  ")
        event = f"Supervision event: {self._event}\n  {cause}"
        return f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks={self.crashed_ranks}, event={event})"

    __repr__ = __str__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MeshFailure cannot be pickled: send what report() says")
