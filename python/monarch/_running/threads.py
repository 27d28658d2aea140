"""The names of the threads that run actors, and what ``threading`` makes of them in children of ``fork``."""

from __future__ import annotations

import os
import threading
from typing import Any

DRIVER = "monarch-actor-driver"  # of an actor whose endpoints are all ``def``
EVENT_LOOP = "monarch-actor-event-loop"
SWARM = "monarch-swarm"
FAILURES = "monarch-failures"  # what decides about failures of what the script owns
RESTARTS = "monarch-restarts"  # what makes anew what has a restart policy


def name_thread(name: str) -> None:
    """Sets ``threading.current_thread().name``."""
    threading.current_thread().name = name


def _become_main_thread() -> None:
    """In a child that an actor's thread has forked: ``threading`` takes the object of that thread for its main thread.

    Python up to 3.11 cannot end by such a one: a child of ``multiprocessing`` would have the exit code 1.
    """
    module: Any = threading
    main: Any = module._main_thread
    if type(main) is module._DummyThread and getattr(main, "_tstate_lock", main) is None:
        main.__class__ = module._MainThread
        main._daemonic = False
        main._set_tstate_lock()


os.register_at_fork(after_in_child=_become_main_thread)
