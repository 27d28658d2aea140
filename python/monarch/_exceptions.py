"""The exceptions that calls raise, and how an exception travels from an actor to its caller.

Exception
 |- ActorError                   user code of an endpoint raised
 `- RuntimeError
     |- SupervisionError         the target died or was stopped
     `- WouldBlockRuntime        a wait that could never end
TimeoutError
 `- DeadlineExceeded             the deadline of a call, or of what it was made for, has passed
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ActorError", "DeadlineExceeded", "SupervisionError", "WouldBlockRuntime"]


class ActorError(Exception):
    """An endpoint raised, or its arguments or result did not pickle. The actor lives on.

    All of its arguments are attributes, and ``str()`` has all of them.

    Args:
        exception: the original; a ``RuntimeError`` with its type and text if it does not pickle.
        message: names the call.
        exception_formatted: the remote traceback as text.
    """

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
        return (
            f"{self.message}\n"
            " Traceback of where the remote call failed (most recent call last):\n"
            f"{self.exception_formatted}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exception, self.message, self.exception_formatted)


class SupervisionError(RuntimeError):
    """A rank that a call needed died, failed or was stopped. ``endpoint`` is the call (``mesh.method``) or None.

    The text says which rank, and how it ended: exit code, signal or traceback, and pid. Where it was a process, these
    are attributes too, None if unknown: ``pid``, ``host`` (its machine), ``exit_code`` or ``signal``, the name of its
    mesh of processes, ``mesh``, and in that its ``rank`` and ``coordinates`` (one for each dimension).
    """

    pid: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    mesh: str | None = None
    rank: int | None = None
    coordinates: tuple[int, ...] | None = None

    def __init__(self, message: str, endpoint: str | None = None) -> None:
        super().__init__(message)
        self.endpoint = endpoint

    def _with_record(self, record: tuple[Any, ...] | None) -> SupervisionError:
        """What the core knows of the failure, as attributes."""
        if record is not None:
            _, self.pid, host, self.exit_code, self.signal, self.rank, mesh, where = record
            self.host, self.mesh = host or None, mesh or None
            self.coordinates = where if mesh else None
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.endpoint), self.__dict__


class WouldBlockRuntime(RuntimeError):
    """A blocking wait on a thread that itself makes what is waited for. Nothing has been consumed."""


class DeadlineExceeded(TimeoutError):
    """A deadline has passed (``with deadline(...)``, ``endpoint.options(deadline=...)``): the work was given up.

    Unlike the plain ``TimeoutError`` of ``get(timeout)``, after which the call goes on and may be waited for again.
    """


class SetupFailed(Exception):
    """In a worker: its bootstrap function has raised ``cause``, which is what callers get."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


_OWN_FILES = tuple(f"/monarch/_{name}.py" for name in ("endpoint", "async", "actor", "forks", "worker", "reducers"))


_REPEATS_MAX = 3  # as of the interpreter: more of the same frame is said in words


def format_exception(error: BaseException) -> str:
    """The traceback of ``error`` with causes and contexts, without the frames of this package."""
    return _format(error)[0]


def _format(error: BaseException) -> tuple[str, bool]:
    """The traceback, and whether all its lines of code are known to be there.

    Done by hand for the plain case: ``traceback.format_exception`` takes five times as long.
    """
    if error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__):
        return _format_fully(error), False
    if isinstance(error, SyntaxError) or getattr(error, "__notes__", None) or hasattr(error, "exceptions"):
        return _format_fully(error), False
    import linecache

    lines = []
    complete = True
    entry = error.__traceback__
    last, count = None, 0  # where the frame before was, and how often it has been there one after the other
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.endswith(_OWN_FILES):
            here = code, entry.tb_lineno
            count = count + 1 if here == last else 1
            last = here
            if count > _REPEATS_MAX:
                following = entry.tb_next
                if following is None or (following.tb_frame.f_code, following.tb_lineno) != here:
                    times = count - _REPEATS_MAX
                    lines.append(f"  [Previous line repeated {times} more time{'s' if times > 1 else ''}]\n")
                entry = following
                continue
            lines.append(f'  File "{code.co_filename}", line {entry.tb_lineno}, in {code.co_name}\n')
            source = linecache.getline(code.co_filename, entry.tb_lineno, entry.tb_frame.f_globals).strip()
            if source:
                lines.append(f"    {source}\n")
            else:
                complete = False
        entry = entry.tb_next
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    text = _text_of(error)
    lines.append(f"{name}: {text}\n" if text else f"{name}\n")
    return "".join(lines), complete


def _format_fully(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def fill_in_source(text: str) -> str:
    """Adds to a traceback the lines of code that its process could not read, as far as this one can.

    Code of a notebook's cell, of an interactive session or of ``exec`` travels by value, and its source stays behind.
    """
    if ' File "' not in text:
        return text
    lines = text.split("\n")
    filled = []
    for line, following in zip(lines, [*lines[1:], ""]):
        filled.append(line)
        start = line.find('File "')
        if start < 1 or line[:start].strip() or following.startswith(" " * (start + 1)):
            continue
        name, _, rest = line[start + 6 :].partition('", line ')
        number = rest.partition(",")[0]
        if number.isdecimal():
            import linecache

            source = linecache.getline(name, int(number)).strip()
            if source:
                filled.append(" " * (start + 2) + source)
    return "\n".join(filled)


def pack_error(error: BaseException) -> tuple[Any, Any]:
    """What the caller is sent. An exception that does not survive pickling is replaced by one that says so."""
    if isinstance(error, SetupFailed):
        return "__setup__", pack_error(error.cause)
    return _pack(error, format_exception(error))


def pack_answer(error: BaseException) -> tuple[Any, Any]:
    """The same for the caller of an endpoint. Exceptions of builtin types need no pickle if their arguments do not."""
    kind = type(error)
    if kind is SetupFailed:
        return pack_error(error)
    try:
        formatted, complete = _format(error)
    except BaseException as problem:  # code of its class has raised
        return _stand_in(error, problem), f"{kind.__name__}: {_text_of(error)}\n"
    if kind.__module__ == "builtins" and kind.__reduce__ is _PLAIN_REDUCE and not error.__dict__:
        if all(type(argument) in _PLAIN for argument in error.args):
            return "__builtin__", (kind.__name__, error.args, formatted, complete)
    return _pack(error, formatted)


_PLAIN_REDUCE = BaseException.__reduce__  # type and arguments are all there is
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


def _pack(error: BaseException, formatted: str) -> tuple[Any, Any]:
    import pickle

    from monarch import _pickle

    try:
        body, buffers = _pickle.dumps(error)
        pickle.loads(body, buffers=buffers)
    except BaseException as problem:  # SystemExit too: to be packed is no reason to end
        return _stand_in(error, problem), formatted
    return error, formatted


def _stand_in(error: BaseException, problem: BaseException) -> RuntimeError:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return RuntimeError(f"{kind}: {_text_of(error)} (the exception itself cannot be pickled: {_text_of(problem)})")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"
