"""How an exception travels from an actor to its caller."""

from __future__ import annotations

import os
import pickle
from enum import IntEnum
from typing import Any

from monarch._calls import pickling
from monarch._errors.exceptions import SetupFailed
from monarch._errors.tracebacks import format_exception, format_or_raise, text_of


class Packed(IntEnum):
    """What the caller is sent is a tuple: one of these, and what belongs to it (``wire/error_kind.h``).

    Where an actor has raised, that ends with who: the pid of its process and the name of its machine.
    """

    PICKLED = 0
    BUILTIN = 1
    PLAIN = 2
    END_OF_STREAM = 3
    DEADLINE = 4
    SET_UP = 5
    NATIVE = 6
    DEADLOCK = 7


# Plain numbers: the native codec, which needs no pickle, takes no subclasses of them.
_PICKLED, _BUILTIN, _PLAIN, _SET_UP = int(Packed.PICKLED), int(Packed.BUILTIN), int(Packed.PLAIN), int(Packed.SET_UP)


def pack_error(error: BaseException) -> tuple[Any, ...]:
    """What the caller is sent. An exception that does not survive pickling is replaced by one that says so."""
    if type(error) is SetupFailed:
        return _SET_UP, *_packed(error.cause, format_exception(error.cause)), *_who()
    return _PICKLED, *_packed(error, format_exception(error)), *_who()


def pack_plain(error: BaseException) -> tuple[Any, ...]:
    """For a port: who receives it is to raise it as it is."""
    return _PLAIN, error


def pack_answer(error: BaseException) -> tuple[Any, ...]:
    """The same for the caller of an endpoint. Exceptions of builtin types need no pickle if their arguments do not."""
    kind = type(error)
    if kind is SetupFailed:
        return pack_error(error)
    try:
        formatted, complete = format_or_raise(error)
    except BaseException as problem:  # code of its class has raised, as it would there
        return _PICKLED, _stand_in(error, problem), format_exception(error), *_who()
    if kind.__module__ == "builtins" and kind.__reduce__ is _BARE_REDUCE and not error.__dict__:
        if all(type(argument) in _SCALARS for argument in error.args):
            return _BUILTIN, kind.__name__, error.args, formatted, complete, *_who()
    return _PICKLED, *_packed(error, formatted), *_who()


def _who() -> tuple[int, str]:
    return os.getpid(), _HOST


_HOST = os.uname().nodename
_BARE_REDUCE = BaseException.__reduce__  # type and arguments are all there is
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})


def _packed(error: BaseException, formatted: str) -> tuple[BaseException, str]:
    try:
        body, buffers = pickling.dumps(error)
        pickle.loads(body, buffers=buffers)
    except BaseException as problem:  # SystemExit too: to be packed is no reason to end
        return _stand_in(error, problem), formatted
    return error, formatted


def _stand_in(error: BaseException, problem: BaseException) -> RuntimeError:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return RuntimeError(f"{kind}: {text_of(error)} (the exception itself cannot be pickled: {text_of(problem)})")
