"""Code that is sent by value is for one minor version of Python, and the names beside it are of one cloudpickle.

Each piece of code says which both are. A process with another Python refuses it, since bytecode of another version may
crash. Another cloudpickle mostly does; where it does not, the error names both.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any

_HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
_of_sender = _HERE  # what code that is sent from here says
_MADE_BY = rb"code of Python (\d+\.\d+) by cloudpickle ([\w.+!-]+)"
# What is not there of another cloudpickle, or takes other arguments.
_OF_CLOUDPICKLE = r"cloudpickle|\b_(make|class|function|builtin|cell)_\w+\(\)"


def code_pickler(cloudpickle: Any) -> Any:
    """A ``cloudpickle.Pickler`` whose code says what made it."""
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]
    made_by = f"code of Python {_of_sender} by cloudpickle {cloudpickle.__version__}"

    def reduce_code(code: CodeType) -> Any:
        return _code, (made_by, *reduce(code))

    class Pickler(cloudpickle.Pickler):
        dispatch_table = ChainMap({CodeType: reduce_code}, cloudpickle.Pickler.dispatch_table)

    return Pickler


def _code(made_by: str, make: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    if not made_by.startswith(f"code of Python {_HERE} by "):
        found = re.fullmatch(_MADE_BY, made_by.encode())
        theirs = found[1].decode() if found else "?"
        raise RuntimeError(
            f"code that is sent by value is for the sender's version of Python, {theirs}, and this process "
            f"({sys.executable}) runs {_HERE}: give both the same one, or put the code into a module that both import"
        )
    return make(*args)


def dumps(value: Any) -> bytes:
    """As ``cloudpickle.dumps``, for whoever may run another Python."""
    import cloudpickle

    file = io.BytesIO()
    code_pickler(cloudpickle)(file).dump(value)
    return file.getvalue()


def loads(pickled: Any) -> Any:
    """As ``pickle.loads``, with an error that says which cloudpickle both sides have where that may be why."""
    try:
        return pickle.loads(pickled)
    except Exception as error:
        explain(error, pickled)
        raise


def explain(error: BaseException, pickled: Any) -> None:
    """Adds to an error of unpickling which cloudpickle both sides have, where that may be why."""
    if not isinstance(error, (ImportError, AttributeError, TypeError)) or not re.search(_OF_CLOUDPICKLE, str(error)):
        return
    sender = re.search(_MADE_BY, pickled)
    ours = getattr(sys.modules.get("cloudpickle"), "__version__", "none")
    if sender is None or sender[2].decode() == ours:
        return
    text = (
        f"{error} (what is sent by value needs cloudpickle, of which the sender has {sender[2].decode()}, "
        f"and this process, {sys.executable}, has {ours})"
    )
    error.args = (text,)
    if isinstance(error, ImportError):
        error.msg = text
