"""How the actors of a process are made, and what its mesh's bootstrap function does before."""

from __future__ import annotations

import sys
from typing import Any

from monarch import _core
from monarch._actors.class_table import table_of
from monarch._actors.declarations import SYNC
from monarch._calls import versions
from monarch._errors.exceptions import SetupFailed
from monarch._meshes.instance import ActorInstance
from monarch._meshes.spawning import SpawnInfo
from monarch._running import threads
from monarch._runtime import forks
from monarch._runtime.here import here
from monarch._runtime.loading import loading
from monarch._values.geometry import Extent, Point


def run_setup(setup: bytes | None) -> None:
    """Runs the mesh's bootstrap function, pickled. What it raises is what every constructor then raises."""
    if setup is None:
        return
    try:
        forks.call(_set_up, setup)
    except BaseException as error:
        here().setup_error = error


def _set_up(setup: bytes) -> None:
    outcome = versions.loads(setup)()
    if hasattr(outcome, "__await__"):
        import asyncio

        asyncio.run(_wait(outcome))


async def _wait(awaitable: Any) -> None:
    await awaitable


def _raise_setup_error(*_: Any, **__: Any) -> Any:
    error = here().setup_error
    assert error is not None
    raise SetupFailed(error)


def _find_class(module: str, qualname: str) -> Any:
    with loading(module):
        __import__(module)  # also where it is in sys.modules: another thread may be in the middle of importing it
    found: Any = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


_last_extent: Any = ((), (), Extent([], []))


def _extent(labels: tuple[str, ...], sizes: tuple[int, ...]) -> Extent:
    """That of the actor before, if it is the same, as it mostly is where many are spawned."""
    global _last_extent
    last_labels, last_sizes, extent = _last_extent
    if labels != last_labels or sizes != last_sizes:
        extent = Extent(labels, sizes)
        _last_extent = labels, sizes, extent
    return extent


_prepared = False


def _prepare() -> None:
    """Before the first actor of this process."""
    global _prepared
    from monarch._runtime import log_prefix  # logging

    log_prefix.watch()
    _prepared = True


def construct(cell: Any, value: tuple[Any, ...], rank: int) -> bool:
    """Makes the instance. Returns whether the actor needs an event loop.

    A new thread runs it, for which all is slow the first time; so it does no more than it must.
    """
    cls, args, kwargs, told = value
    info = SpawnInfo(*told)
    if not _prepared:
        _prepare()
    if kwargs is None:  # nothing was pickled
        cls, kwargs = _find_class(*cls), {}
    extent = _extent(info.labels, info.sizes)
    table = table_of(cls)
    spawner, procs, substitutes = info.spawner, info.procs, info.substitutes
    identity = ActorInstance(info.name, table.class_name, Point(rank, extent), spawner, procs, cell, substitutes)
    threads.name_thread(threads.DRIVER)
    if here().setup_error is not None:
        failing = [(_raise_setup_error, SYNC)] * max(1, len(table.functions))
        cell.set_up(object(), identity, extent, _core.Methods(failing), False)
        return False
    instance = cls.__new__(cls)
    cell.set_up(instance, identity, extent, table.methods, table.supervises)
    instance.__init__(*args, **kwargs)
    return table.is_async
