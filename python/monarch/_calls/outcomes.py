"""What a caller is told of a call that failed: the exceptions that its future raises."""

from __future__ import annotations

import builtins
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._calls.packing import Packed
from monarch._errors.exceptions import ActorError, DeadlineExceeded, DeadlockError, SupervisionError, add_note
from monarch._errors.record import FailureRecord, record_of
from monarch._errors.tracebacks import fill_in_source, text_of
from monarch._values.ranks import ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence


def actor_error(ep: Any, rank: int, packed: Any) -> BaseException:
    """Of what an actor has answered; ``packed``: ``packing.Packed`` and what belongs to it."""
    kind, *parts = packed
    if kind == Packed.PLAIN:
        return parts[0]
    if kind == Packed.END_OF_STREAM:
        return EOFError(parts[0])
    if kind == Packed.DEADLINE:
        return DeadlineExceeded(parts[0] if ep is None else f"{ep}: {parts[0]}")
    if kind == Packed.DEADLOCK:
        return DeadlockError(parts[0], None if ep is None else str(ep))
    *parts, pid, host = parts
    error = _raised(kind, parts, f"Actor call {ep} failed." if ep is not None else "A remote actor call has failed.")
    error.pid, error.host = pid, host
    who = ""
    if ep is not None:
        point, who = ep._mesh._place_of(rank + ep._first_rank)
        error.rank, error.coordinates = point.rank, tuple(point.values())
    by = "the bootstrap function of " if kind == Packed.SET_UP else ""
    add_note(error, f"raised by {by}{who}in process {pid} on {host}")
    return error


def _raised(kind: int, parts: list[Any], message: str) -> ActorError:
    if kind == Packed.PICKLED:
        error, formatted = parts
        return ActorError(error, message, fill_in_source(formatted))
    if kind == Packed.BUILTIN:
        name, args, formatted, complete = parts
        error = getattr(builtins, name)(*args)
        return ActorError(error, message, formatted if complete else fill_in_source(formatted))
    if kind == Packed.SET_UP:  # whatever was called: the process is of no use
        error, formatted = parts
        return ActorError(error, "Actor call setup.setup failed.", formatted)
    name, text = parts
    return ActorError(RuntimeError(f"{name}: {text}"), message, f"{name}: {text}\n")


class FailureKind(IntEnum):
    """Those of ``wire/failure.h`` that are told in words of their own."""

    REFUSED = 1
    EXITED = 2
    NOT_STARTED = 3
    STOPPED = 4
    UNREACHABLE = 7
    ENDING = 8
    ACTOR = 10
    ACTOR_STOPPED = 12
    NOT_SENT = 13


_STOPPED = (FailureKind.STOPPED, FailureKind.ACTOR_STOPPED)
_OF_THEIR_OWN = (FailureKind.EXITED, FailureKind.NOT_STARTED, FailureKind.ACTOR)  # each rank for itself
_NOBODY_DIED = (FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.ENDING, FailureKind.NOT_SENT)


def supervision_error(
    ep: Any, rank: int, text: str, record: tuple[Any, ...] | None, others: Sequence[int] = ()
) -> BaseException:
    """Of a rank that cannot answer. ``others``: ranks of the call that have failed as well."""
    text = fill_in_source(text)
    failure = record_of(record)
    if ep is None:
        return _with_record(SupervisionError(text), failure)
    if ep._mesh._is_of_processes:
        for of_actor in (" this actor was running on", " this actor was to run on", " this actor is running on"):
            text = text.replace(of_actor, "", 1)
        return _with_record(SupervisionError(f"{ep}: {text}", str(ep)), failure)
    actor = ep._mesh._describe_rank(rank + ep._first_rank)
    kind = 0 if failure is None else failure.kind
    if kind in _NOBODY_DIED:
        cause = text
    elif kind in _STOPPED:
        cause = f"Supervision event: actor {actor} has status:\n  {text}"
    else:
        cause = f"The actor {actor} and all its descendants have failed:\n  {text}"
    if others and kind in _OF_THEIR_OWN:
        own = [other + ep._first_rank for other in others]
        cause += f"\n{ranks_text(own).capitalize()} of this call {'has' if len(own) == 1 else 'have'} failed as well"
    return _with_record(SupervisionError(f"Endpoint call {ep}() failed, {cause}", str(ep)), failure)


def _with_record(error: SupervisionError, failure: FailureRecord | None) -> SupervisionError:
    if failure is not None:
        error._take(failure)
    return error


_RANKS_MAX = 16  # more of them are said in words


def timed_out(ep: Any, missing: list[int]) -> TimeoutError:
    """What ``get(timeout)`` raises while these ranks have not answered. Its text is empty, as in the reference."""
    error: Any = TimeoutError()
    missing = [rank + ep._first_rank for rank in missing]
    error.endpoint, error.missing_ranks = str(ep), tuple(missing)
    if not missing:
        return error  # the last of them has answered meanwhile
    ranks = ", ".join(str(rank) for rank in missing[:_RANKS_MAX])
    if len(missing) > _RANKS_MAX:
        ranks += f" and {len(missing) - _RANKS_MAX} more"
    add_note(error, f"{ep} has not been answered by rank{'s' if len(missing) > 1 else ''} {ranks} of {len(ep._mesh)}")
    return error


def add_missing(error: Any, ep: Any, missing: list[int], asked: list[int], answers: list[Any]) -> None:
    """To the ``DeadlineExceeded`` of a call: who had not answered, and what those did shortly before who were asked."""
    name, first = ("?", 0) if ep is None else (ep._mesh._name, ep._first_rank)
    error.endpoint = None if ep is None else str(ep)
    error.missing_ranks = tuple(rank + first for rank in missing)
    if not asked:
        return
    from monarch._values.stack_report import make_report

    numbered = ep is None or len(ep._mesh) > 1
    error.stacks = make_report([(name, rank + first if numbered else None) for rank in asked], answers)
    add_note(error, f"{error.stacks}")


def losses(grace: float | None) -> list[str]:
    """A line for each endpoint with lost calls, at the end of a script: those that raised, and nobody has looked.

    And, after a wait of ``grace`` seconds (None: the script has failed), those that have not been answered, and one-way
    messages that have not been handled.
    """
    unhandled = [] if grace is None else _core.wait_for_unseen(grace)
    unanswered: dict[str, set[int]] = {}
    raised: dict[str, dict[int, Any]] = {}
    for call, name, error in _core.unseen():
        if error is not None:
            raised.setdefault(name, {})[call] = error
        elif grace is not None:
            unanswered.setdefault(name, set()).add(call)
    lines = [
        f"the script has ended before {_calls(len(calls))} of {name} {'was' if len(calls) == 1 else 'were'} answered"
        for name, calls in unanswered.items()
    ]
    for name, count in unhandled:
        what = "a broadcast" if count == 1 else f"all of {count} broadcasts"
        lines.append(f"the script has ended before {what} to {name} {'was' if count == 1 else 'were'} handled")
    for name, errors in raised.items():
        error = next(iter(errors.values()))
        first = getattr(error, "exception", error)
        what = "an exception that cannot be decoded" if first is ... else f"{type(first).__name__}: {_in_a_line(first)}"
        lines.append(f"{_calls(len(errors))} of {name} failed, and nobody has looked at the future: {what}")
    return lines


_TEXT_MAX = 300


def _in_a_line(error: BaseException) -> str:
    text = text_of(error)
    line = text.partition("\n")[0]
    return line if len(line) <= _TEXT_MAX and line == text else line[:_TEXT_MAX] + " ..."


def _calls(count: int) -> str:
    return "a call" if count == 1 else f"{count} calls"
