"""What an owner is told when something that it owns has failed."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from monarch import _core
from monarch._errors.record import FailureRecord, Recorded

__all__ = ["MeshFailure"]


_HAVE_FAILED = " and all its descendants have failed:"
_PROCESS = "process this actor was running on "


def _in_a_few_words(headline: str) -> str:
    before, of_process, what = headline.partition(_PROCESS)
    if of_process and before in ("the ", "the host of the "):
        what = what.removeprefix("failed: ").partition(" (rank {")[0].partition(" ('")[0]
        name, killed, signal = what.partition("(sig=")
        return f"killed by signal {signal.rstrip(')')}" if killed else what.replace("with non-zero code", "with code")
    before, not_started, after = headline.partition(" could not be started (")
    if not_started and before.startswith("the "):
        return f"could not be started: {after.partition('): ')[2]}"
    if headline.startswith("the host at "):  # that cannot be attached to
        return headline.rpartition(" (")[0]
    return headline.partition(" failed: ")[2] or headline


class _Told(NamedTuple):
    """What the core tells of it."""

    mesh_name: str
    rank: int
    coordinates: tuple[int, ...]
    who: str
    report: str
    cause: str
    origin: str
    is_procs: bool
    node: int
    actor: int
    record: tuple[Any, ...]
    mesh_id: int = 0
    made_ns: int = 0


class MeshFailure(Recorded):
    """One rank of a mesh has failed: the argument of ``__supervise__`` and ``unhandled_fault_hook``. No exception.

    ``mesh_name`` is the name that the mesh, of actors or of processes, was spawned with, ``crashed_ranks`` the list of
    the one rank that this is about, ``coordinates`` its place, one number for each dimension. ``report()`` says in
    words who has failed and of what, ``cause`` only of what, ``origin`` in a line what it all began with, and ``kind``
    in a few words: "killed by signal 9", or "what it owns has failed: killed by signal 9" of who fails of that.
    ``pid`` and ``host``, the machine, are those of its process. Where that has ended: its ``exit_code`` or ``signal``,
    ``in_flight``, ``last_lines``, ``stack`` and ``out_of_memory``, as of ``SupervisionError``.
    """

    def __init__(self, *told: Any) -> None:
        if not told:
            raise TypeError("programs do not make a MeshFailure: __supervise__ and unhandled_fault_hook are given one")
        of = _Told(*told)
        self.mesh_name = of.mesh_name
        self.crashed_ranks = [of.rank]
        self.coordinates = of.coordinates
        self.cause = of.cause
        self.origin = of.origin
        self.mesh = ()  # as in the reference, where it is that always
        self._record = FailureRecord(*of.record)
        self._take(self._record)
        self._report = of.report
        self._event = f"{'process' if of.is_procs else 'actor'} {of.who} failed:"
        self._is_procs = of.is_procs
        self._source = of.node, of.actor  # whose failure it is: an actor's, or (0) its process's
        self._mesh_id = of.mesh_id
        self._made_ns = of.made_ns  # when that was last made anew

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {"climb", "handled", "is_current", "is_told"})  # of this package

    @property
    def kind(self) -> str:
        """How the process ended, or what the actor raised; or what has become of something that it owns."""
        if ended := self._record.how_it_ended():
            return ended
        head, *rest = self._report.split("\n", 2)
        of = rest[0].strip() if rest else head
        if of == self.origin:
            return _in_a_few_words(of)
        if of.startswith("The actor ") and of.endswith(_HAVE_FAILED):
            return f"what it owns has failed: {_in_a_few_words(self.origin)}"
        return _in_a_few_words(of)  # of its hook, which was called with that failure

    def report(self) -> str:
        """Who has failed, and of what: several lines, with a traceback where there is one."""
        return self._report

    def is_told(self, at_the_end: bool = False) -> bool:
        """Somebody has just seen it as an exception, or at the end has named the call that raises it."""
        told: bool = _core.is_told(*self._source, self._made_ns, at_the_end)
        return told

    def is_current(self) -> bool:
        """What has failed has not been made anew since."""
        current: bool = _core.is_current(self._mesh_id, self.crashed_ranks[0], self._made_ns)
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
