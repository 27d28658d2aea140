"""Code that is sent by value is for one minor version of Python, and the names beside it are of one cloudpickle.

A pickle with code begins with a call that says which both are. Who has another Python refuses it there: bytecode of
another version may crash. Another cloudpickle will mostly do; where it does not, the error names both.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

_ours = sys.version_info[:2]
_CALL = f"{__name__}\n_sent_by\n".encode()
_theirs = ""  # the cloudpickle of who sent the last code that came


def begin_of_code(cloudpickle: Any) -> bytes:
    """What this process's pickles with code begin with: a call of :func:`_sent_by`, whose result is dropped."""
    version = str(cloudpickle.__version__)[:255].encode("ascii", "replace")
    return b"".join([
        b"\x80\x05", pickle.GLOBAL, _CALL, pickle.MARK,
        pickle.BININT1, bytes([_ours[0]]), pickle.BININT1, bytes([_ours[1]]),
        pickle.SHORT_BINUNICODE, bytes([len(version)]), version, pickle.TUPLE, pickle.REDUCE, pickle.POP,
    ])  # fmt: skip


def _sent_by(major: int, minor: int, of_cloudpickle: str) -> None:
    global _theirs
    _theirs = of_cloudpickle
    if (major, minor) != sys.version_info[:2]:
        raise RuntimeError(
            f"code that is sent by value is for the sender's version of Python, {major}.{minor}, and "
            f"{_this_process()}: give both the same one, or put the code into a module that both can import"
        )


def _this_process() -> str:
    return f"this process ({sys.executable}) runs {sys.version_info[0]}.{sys.version_info[1]}"


def explain(error: BaseException, pickled: Any) -> None:
    """Raises what says more than this error of unpickling, if cloudpickle is another one here, or is not there."""
    if not isinstance(error, (ImportError, AttributeError, TypeError)) or _sent_by.__name__.encode() not in bytes(
        pickled
    ):
        return
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "cloudpickle":
        raise ImportError(
            f"what is sent by value needs cloudpickle, of which the sender has {_theirs}, and {_this_process()} "
            "without it"
        )
    ours = getattr(sys.modules.get("cloudpickle"), "__version__", None)
    if ours in (None, _theirs) or type(error) not in (ImportError, AttributeError, TypeError):
        return
    raise type(error)(
        f"{error} (what is sent by value is of the sender's cloudpickle {_theirs}, and {_this_process()} with {ours})"
    )
