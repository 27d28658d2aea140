"""The exceptions that calls raise, and how an exception travels from an actor to its caller.

Exception
 |- ActorError                   user code of an endpoint raised
 |- UnhandledFaultHookException  never raised: there for programs that name it
 `- RuntimeError
     |- SupervisionError         the target died or was stopped
     |   `- DeadlockError        it waits, perhaps through others, for its caller
     `- WouldBlockRuntime        a wait that could never end
TimeoutError
 `- DeadlineExceeded             the deadline of a call, or of what it was made for, has passed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._errors.record import FailureRecord, Recorded
from monarch._errors.tracebacks import HEADER, format_exception, text_of

if TYPE_CHECKING:
    from monarch._values.stack_report import StackReport

__all__ = ["ActorError", "DeadlineExceeded", "DeadlockError", "SupervisionError", "WouldBlockRuntime"]


class ActorError(Exception):
    """An endpoint raised, or its arguments or result did not pickle. The actor lives on.

    All of its arguments are attributes, and ``str()`` has all of them. Who failed are attributes too, None if unknown,
    and a note below the traceback: ``rank`` in the mesh that was called, its ``coordinates`` (one for each dimension),
    and of its process ``pid`` and ``host``, the machine.

    Args:
        exception: the original; a ``RuntimeError`` with its type and text if it does not pickle.
        message: names the call.
        exception_formatted: the remote traceback as text.
    """

    rank: int | None = None
    coordinates: tuple[int, ...] | None = None
    pid: int | None = None
    host: str | None = None

    def __init__(
        self,
        exception: BaseException,
        message: str = "A remote actor call has failed.",
        exception_formatted: str | None = None,
    ) -> None:
        super().__init__(exception, message)
        self.exception = exception
        self.message = message
        self.exception_formatted = format_exception(exception) if exception_formatted is None else exception_formatted

    def __str__(self) -> str:
        told = self.exception_formatted.replace(HEADER, _REMOTE_HEADER)
        if told.startswith("  + Exception Group"):  # which has the header in its first line
            return f"{self.message}\n {told}"
        return f"{self.message}\n {_REMOTE_HEADER}\n{told}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exception, self.message, self.exception_formatted), self.__dict__


def retold(error: ActorError, message: str) -> ActorError:
    """The same, where the call is none that the user has made: ``message`` says in his words what has failed."""
    told = ActorError(error.exception, message, error.exception_formatted)
    told.__dict__.update({**error.__dict__, "message": message})
    return told


_REMOTE_HEADER = "Traceback of where the remote call failed (most recent call last):"


def add_note(error: BaseException, note: str) -> None:
    """As ``error.add_note(note)``, which comes with Python 3.11; before that nobody shows it."""
    error.__dict__.setdefault("__notes__", []).append(note)


class SupervisionError(RuntimeError, Recorded):
    """A rank that a call needed died, failed or was stopped. ``endpoint`` is the call (``mesh.method``) or None.

    The text says which rank, and how it ended: exit code, signal or traceback, and pid. These are attributes too, None
    if unknown: ``pid``, ``host`` (its machine), the name of its mesh, ``mesh``, and in that its ``rank`` and
    ``coordinates`` (one for each dimension). Where an actor has failed, ``mesh`` is the actors'; where a process has
    ended, it is the processes', and there are besides: ``exit_code`` or ``signal``; ``in_flight``, the endpoints that
    it was in (``("trainer.step",)``); ``last_lines``, of its stderr; ``stack``, if it crashed; and of SIGKILL
    ``out_of_memory``: whether the kernel's OOM killer has killed in its cgroup.
    """

    mesh: str | None = None
    rank: int | None = None
    coordinates: tuple[int, ...] | None = None

    def __init__(self, message: str, endpoint: str | None = None) -> None:
        super().__init__(message)
        self.endpoint = endpoint

    def _take(self, record: FailureRecord) -> None:
        super()._take(record)
        if record.mesh:
            self.mesh, self.rank, self.coordinates = record.mesh, record.rank, record.coordinates

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.endpoint), self.__dict__


class DeadlockError(SupervisionError):
    """The call is one of a cycle of calls, each of which waits for the next: it could never be answered.

    The text names each actor of the cycle, with its rank, the endpoint that it is in and the one that it waits for. It
    is the call that has closed the cycle; the others, which wait for the endpoint it was made in, go on from there.
    """


class UnhandledFaultHookException(Exception):
    """Never raised: a hook that raises ends the program. There for programs that name it."""


class WouldBlockRuntime(RuntimeError):
    """A blocking wait on a thread that itself makes what is waited for. Nothing has been consumed."""


class DeadlineExceeded(TimeoutError):
    """A deadline has passed (``with deadline(...)``, ``endpoint.options(deadline=...)``): the work was given up.

    Unlike the plain ``TimeoutError`` of ``get(timeout)``, after which the call goes on and may be waited for again.

    ``endpoint`` and ``missing_ranks`` say which call, and who had not answered it (of a partial gather or a stream each
    says its own rank); None and () if it was no call.
    ``stacks`` is a ``StackReport`` of the processes that had not answered a call, taken shortly before its deadline,
    and a note below the traceback; None if the call had less than a second, or another one of this process has been
    reported within the last.
    """

    endpoint: str | None = None
    missing_ranks: tuple[int, ...] = ()
    stacks: StackReport | None = None


class SetupFailed(Exception):
    """In a worker: its bootstrap function has raised ``cause``, which is what callers get."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(text_of(cause))
        self.cause = cause
