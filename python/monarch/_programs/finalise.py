"""The end of a worker: what the end of an interpreter promises to programs, without taking the interpreter apart.

Threads are joined, ``atexit`` handlers run, globals of the program's own modules go, with their ``__del__`` and the
files that they hold, and what is buffered is written. Then the process can end at once. Whoever takes too long is
killed by the process's owner.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import sysconfig
import threading
import time
from types import ModuleType
from typing import Any

from monarch._calls import pickling
from monarch._runtime import forks, runtime

_PATHS = sysconfig.get_paths()
_INSTALLED = (
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
    *{os.path.join(_PATHS[key], "") for key in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def finalise(limit: float) -> None:
    """On the main thread, when no actor runs any more. ``limit``: seconds for threads that are no daemons to end."""
    _join_threads(time.monotonic() + limit)
    forks.end_multiprocessing()
    atexit._run_exitfuncs()
    if set(sys._current_frames()) == {threading.get_ident()}:  # else a thread may use the globals
        _forget_globals()
    _flush_files()
    runtime.flush()


def _join_threads(deadline: float) -> None:
    """As the interpreter does it, within a time: pools are asked to end, then all threads but daemons are joined."""
    pools = threading.Thread(target=_end_pools, name="monarch-pools", daemon=True)
    try:
        pools.start()
    except RuntimeError:
        pass  # no thread can be made: pools end with the process
    else:
        pools.join(max(0.0, deadline - time.monotonic()))
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def _end_pools() -> None:
    for end in reversed(getattr(threading, "_threading_atexits", ())):
        end()


def _forget_globals() -> None:
    for variables in [*_of_code_by_value(), *reversed([vars(module) for module in _own_modules()])]:
        # First what is private, as the interpreter does: destructors find more of what they use.
        for private in (True, False):
            for name in list(variables):
                if isinstance(name, str) and name.startswith("_") == private and not name.startswith("__"):
                    variables[name] = None
    gc.collect()


def _of_code_by_value() -> list[dict[str, Any]]:
    """The globals of classes that are not importable: of the script, or of a notebook."""
    of_modules = {id(module.__dict__) for module in list(sys.modules.values()) if isinstance(module, ModuleType)}
    found: dict[int, dict[str, Any]] = {}
    for cls in pickling.loaded_classes():
        for value in list(vars(cls).values()):
            variables = getattr(getattr(value, "_method", value), "__globals__", None)
            if isinstance(variables, dict) and id(variables) not in of_modules:
                found[id(variables)] = variables
    return list(found.values())


def _own_modules() -> list[ModuleType]:
    """The modules of the program, in the order in which they were imported: neither the library's nor installed."""
    return [module for module in list(sys.modules.values()) if _is_own(module)]


def _is_own(module: Any) -> bool:
    if not isinstance(module, ModuleType):
        return False
    file = module.__dict__.get("__file__")  # a look at an attribute may run code
    installed = ("/site-packages/", "/dist-packages/")
    return isinstance(file, str) and not file.startswith(_INSTALLED) and not any(part in file for part in installed)


def _flush_files() -> None:
    for value in gc.get_objects():
        # Not isinstance(), which asks the object for its class: an old name that torch keeps warns when it is asked.
        if issubclass(type(value), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            try:
                value.flush()
            except Exception:
                pass  # closed, or somebody's who does not read
