"""Who lives on the meshes of ``monarch.testing.local_procs``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import RLock
from typing import Any


class Inhabitants:
    """What was spawned on a local mesh, and by the actors there: ends with it."""

    def __init__(self) -> None:
        self.lock = RLock()  # a spawn pickles, which may spawn
        self.actors: list[Any] = []
        self.procs: list[Any] = []


known: dict[int, Inhabitants] = {}  # by ProcMesh._local; not those of meshes that were stopped


@contextlib.contextmanager
def admission(number: int) -> Iterator[Inhabitants]:
    """While something is made on that local mesh: it is not stopped meanwhile. What was made is to be added."""
    here = known.get(number)
    if here is None:
        raise RuntimeError("`ProcMesh` has already been stopped, or is local to another process")
    with here.lock:
        if number not in known:
            raise RuntimeError("`ProcMesh` has already been stopped")
        yield here
