"""Children of ``os.fork()`` in processes with a runtime: what belongs to the parent is dead in them.

Uses of handles raise there. A child that comes back from an endpoint, a constructor or a hook ends, as a process of its
own: nobody else may serve its parent's actor.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from monarch import _core
from monarch._runtime import runtime


def end(error: BaseException | None) -> NoReturn:
    """Ends this child as a program ends: by what it raised, if anything."""
    status = 1
    try:
        status = _status(error)
    finally:
        runtime.flush()
        os._exit(status)


def _status(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        from monarch._errors.tracebacks import HEADER, format_exception

        sys.stderr.write(f"{HEADER}\n{format_exception(error)}")
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def end_if_child() -> None:
    """After code of the user's has run."""
    if _core.in_forked_child():
        end(None)


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Runs code of the user's; a child that it forks does not come back."""
    try:
        result = function(*args)
    except BaseException as error:
        if _core.in_forked_child():
            end(error)
        raise
    end_if_child()
    return result


def end_multiprocessing() -> None:
    """The end of a worker, which runs no ``atexit``: what ``multiprocessing`` has made there goes.

    Its children that are no daemons are not waited for; they end with the worker.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    import multiprocessing

    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
    atexit.unregister(util._exit_function)  # which would wait for the others
    util._run_finalizers()
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None and tracker._resource_tracker._fd is not None:
        try:
            tracker._resource_tracker._stop()  # unlinks what is left, and would be killed with the process
        except Exception:
            pass  # it has gone already
