"""The module that a thread imports because of a class that it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Of(threading.local):
    module: str | None = None


_of = _Of()


@contextmanager
def loading(module: str) -> Iterator[None]:
    before, _of.module = _of.module, module
    try:
        yield
    finally:
        _of.module = before


def check_spawn() -> None:
    """A program that spawns at the top level of such a module would do so in each process that it spawns."""
    if _of.module is not None:
        raise RuntimeError(
            f"processes are spawned at the top level of the module {_of.module!r}, which this worker imports for the "
            "class of an actor: each of them would import it again. Put what is to run once into a function, or behind "
            'if __name__ == "__main__":'
        )
