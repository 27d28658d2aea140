"""What an operation on a buffer raises, and what warns."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from monarch._errors.exceptions import SupervisionError

__all__ = [
    "BufferDropped",
    "RDMAError",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMATimeout",
    "RDMAWriteTransferWarning",
]


class RDMAError(Exception):
    """An operation on a buffer has failed. ``outcomes``: what became of each one that was submitted, in order.

    Such an outcome is None where the operation was done, else the exception that it would have raised by itself.
    """

    outcomes: tuple[BaseException | None, ...] = ()


class BufferDropped(RDMAError):
    """The buffer has been dropped: its memory is no more what the handle was made for."""


class RDMATimeout(RDMAError, TimeoutError):
    """The time for it is over. A write may have been made in part, and what a read has filled is undefined."""


class RDMATcpFallbackWarning(UserWarning):
    """Bytes of buffers go over TCP between two hosts, as there is no NIC for them."""


class RDMAReadTransferWarning(UserWarning):
    """Never given: for programs that filter it."""


class RDMAWriteTransferWarning(UserWarning):
    """Never given: for programs that filter it."""


for _each in (
    RDMAError, BufferDropped, RDMATimeout, RDMATcpFallbackWarning, RDMAReadTransferWarning, RDMAWriteTransferWarning
):  # fmt: skip
    _each.__module__ = "monarch.rdma"  # where users find it, imported or not


class Code(IntEnum):
    """``BulkOutcome::Code`` (bulk/bulk.h)."""

    REFUSED = 1
    FAULT = 2
    DEADLINE = 3
    SHORTAGE = 5
    NOT_BEGUN = 6


_REFUSALS = {
    1: "the buffer has been dropped",
    2: "its owner has never given out such a handle",
    3: "the buffer is read-only",
    4: "it reaches past the end of the buffer",
    5: "a block of memory that does not lie in one piece: register a contiguous copy",
}
_DROPPED = 1


def error_of(outcome: Any, operation: Any = None) -> BaseException | None:
    """Of what the core says of one operation: None, an int, ``(code, refusal, text)`` or an exception.

    ``operation``: in words, if anything is known of it; its ``repr`` has its time limit too.
    """
    if isinstance(outcome, SupervisionError):
        outcome.args = (
            str(outcome).replace("the process this actor was running on", "the process that owns the buffer"),
        )
    if isinstance(outcome, BaseException):
        return outcome
    if not isinstance(outcome, tuple):
        return None
    code, refusal, text = outcome
    kind: type[RDMAError] = RDMAError
    if code == Code.REFUSED:
        kind = BufferDropped if refusal == _DROPPED else RDMAError
        text = _REFUSALS.get(refusal, "refused")
    elif code == Code.DEADLINE:
        kind, text = RDMATimeout, "the time for it is over"
    elif code == Code.FAULT:
        text = "memory of the buffer, or of the other side, is not there any more"
    elif code == Code.NOT_BEGUN:
        text = "not begun, as an operation before the fence has failed"
    what = "" if operation is None else f": {operation!r}" if kind is RDMATimeout else f": {operation}"
    return kind(f"RdmaAction.submit failed: {text}{what}")


def raise_first(outcomes: list[Any], operations: Sequence[Any]) -> None:
    """Raises the first that has failed, with all of them; of what was not begun, the cause."""
    errors = tuple(map(error_of, outcomes, operations))
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return
    if isinstance(first, RDMAError):
        first.outcomes = errors
    failed = sum(error is not None for error in errors)
    if failed > 1 and hasattr(first, "add_note"):
        first.add_note(f"{failed} of {len(errors)} operations have failed")
    raise first
