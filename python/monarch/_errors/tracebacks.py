"""Tracebacks as text, without the frames of this package."""

from __future__ import annotations

import os
from typing import Any

_OWN_FILES: tuple[str, ...] = (
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
    "<frozen runpy>",  # by which programs are run
    os.path.join(os.path.dirname(os.__file__), "runpy.py"),
)
if os.environ.get("MONARCH_RUNTIME_FRAMES"):
    _OWN_FILES = ()  # all frames are shown
HEADER = "Traceback (most recent call last):"
_REPEATS_MAX = 3  # as of the interpreter: more of the same frame is said in words


def format_exception(error: BaseException) -> str:
    """The traceback of ``error`` with causes and contexts, without the frames of this package.

    Its first line is a frame, or the error: whoever shows it says what it is a traceback of.
    """
    return format_plainly(error)[0]


def as_printed(error: BaseException) -> str:
    """As the interpreter prints it, without those frames; where no other is left, what is wrong is told alone."""
    import traceback

    frames = traceback.extract_tb(_TRACEBACK_OF.__get__(error))
    if all(frame.filename.startswith(_OWN_FILES) for frame in frames):
        return "".join(traceback.format_exception_only(type(error), error))
    return f"{HEADER}\n{format_exception(error)}"


def format_plainly(error: BaseException) -> tuple[str, bool]:
    """The traceback, and whether all its lines of code are known to be there."""
    try:
        return format_or_raise(error)
    except BaseException:  # frames, class and text can be had without code of its class
        return _format_alone(error, _TRACEBACK_OF.__get__(error))


_TRACEBACK_OF: Any = BaseException.__dict__["__traceback__"]


def format_or_raise(error: BaseException) -> tuple[str, bool]:
    """As ``format_plainly``, but what code of its class raises is raised.

    Done by hand for the plain case: ``traceback.format_exception`` takes five times as long.
    """
    if error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__):
        return _format_fully(error), False
    if isinstance(error, SyntaxError) or getattr(error, "__notes__", None) or hasattr(error, "exceptions"):
        return _format_fully(error), False
    return _format_alone(error, error.__traceback__)


def _format_alone(error: BaseException, entry: Any) -> tuple[str, bool]:
    """Without causes and contexts."""
    import linecache  # and with it tokenize

    lines = []
    complete = True
    checked: set[str] = set()  # files whose lines may have changed since somebody looked
    last, count = None, 0  # where the frame before was, and how often it has been there one after the other
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(_OWN_FILES):
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
            if code.co_filename not in checked:
                checked.add(code.co_filename)
                linecache.checkcache(code.co_filename)
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
    text = text_of(error)
    lines.append(f"{name}: {text}\n" if text else f"{name}\n")
    return "".join(lines), complete


def _format_fully(error: BaseException) -> str:
    import traceback

    told = traceback.TracebackException(type(error), error, error.__traceback__)
    _drop_own_frames(told)
    return "".join(told.format()).removeprefix(HEADER + "\n")


def _drop_own_frames(told: Any) -> None:
    left = [told]
    while left:
        one = left.pop()
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OWN_FILES)]
        others = (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ()))
        left += [other for other in others if other is not None]


def fill_in_source(text: str) -> str:
    """Adds to a traceback the lines of code that its process could not read, as far as this one can.

    Code of a notebook's cell, of an interactive session or of ``exec`` travels by value, and its source stays behind.
    """
    if ' File "' not in text:
        return text
    import linecache

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
            source = linecache.getline(name, int(number)).strip()
            if source:
                filled.append(" " * (start + 2) + source)
    return "\n".join(filled)


def text_of(error: BaseException) -> str:
    """Its ``str()``, also if that raises."""
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"
