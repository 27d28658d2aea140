"""Meshes in the process of a test: ``monarch.testing.local_procs``."""

from __future__ import annotations

import contextlib
from threading import RLock
from typing import TYPE_CHECKING, Any

from monarch import _core, _runtime
from monarch._mesh import STOPPED_BY_CLIENT, ActorMesh, ProcMesh, _whole, check_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monarch._future import Future

__all__ = ["LocalProcMesh", "admission", "local_procs"]


class _Inhabitants:
    """What was spawned on a local mesh, and by the actors there: ends with it."""

    def __init__(self) -> None:
        self.lock = RLock()  # a spawn pickles, which may spawn
        self.actors: list[ActorMesh] = []
        self.procs: list[ProcMesh] = []


_inhabitants: dict[int, _Inhabitants] = {}  # by ProcMesh._local; not those of meshes that were stopped


@contextlib.contextmanager
def admission(number: int) -> Iterator[Callable[[Any], None]]:
    """While something is made on that local mesh: it is not stopped meanwhile. What was made is to be passed on."""
    here = _inhabitants.get(number)
    if here is None:
        raise RuntimeError("`ProcMesh` has already been stopped, or is local to another process")
    with here.lock:
        if number not in _inhabitants:
            raise RuntimeError("`ProcMesh` has already been stopped")
        yield lambda mesh: (here.actors if isinstance(mesh, ActorMesh) else here.procs).append(mesh)


class LocalProcMesh(ProcMesh):
    """What ``monarch.testing.local_procs(...)`` returns: a ``ProcMesh`` whose actors live in this process."""

    _stopping: Future[Any] | None = None
    _actors: list[ActorMesh]

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops what was spawned on this mesh, and by those actors. Starts at once; twice is fine.

        Actors handle what was sent before, then run ``__cleanup__``. A thread cannot be killed: the future waits for an
        endpoint that does not return, ``with`` gives up after ``process_exit_timeout`` (10 s) and names the actors.
        """
        if self._stopping is not None:
            return self._stopping
        self._stopped.append(reason)
        here = _inhabitants[self._local]
        with here.lock:
            del _inhabitants[self._local]
        self._actors = here.actors
        ids = [member for mesh in here.actors for member in mesh._ids]
        stopping = _core.MeshRef(ids, None, False).stop(reason) if ids else _core.completed_future(None)
        ends = [mesh.stop(reason) for mesh in here.procs]
        if ends:
            from monarch._task_future import on_thread

            stopping = on_thread(lambda: [end.get() for end in (*ends, stopping)] and None, "monarch-local-stop")
        self._stopping = stopping
        return stopping

    def _still_there(self) -> TimeoutError:
        names = {mesh._name for mesh in self._actors for node, index in mesh._ids if not _core.actor_end(index)}
        return TimeoutError(f"these actors have not ended: {', '.join(sorted(names))}; what are their endpoints doing?")

    def __exit__(self, *_: Any) -> None:
        try:
            self.stop().get(timeout=_runtime.limit("process_exit_timeout"))
        except TimeoutError:
            raise self._still_there() from None

    async def __aexit__(self, *_: Any) -> None:
        import asyncio

        try:
            await asyncio.wait_for(self.stop().as_asyncio(), _runtime.limit("process_exit_timeout"))
        except (TimeoutError, asyncio.TimeoutError):
            raise self._still_there() from None


def local_procs(sizes: dict[str, int] | None = None, *, name: str = "procs") -> LocalProcMesh:
    """A mesh of processes that are none: its actors live in the process that calls, each with a thread of its own.

    For unit tests of actors, in milliseconds: ``with local_procs({"gpus": 4}) as procs: ...``, or ``async with``.
    Calls, ranks, slices, ports, failures, ``__cleanup__`` and ``stop()`` are those of real processes, arguments and
    answers are copied; ``this_proc()`` and what actors spawn there end with the mesh. What differs is what a
    process is: actors share its memory (module globals, class attributes), environment, standard output, the GIL
    and its death.

    Args:
        sizes: label to size, as ``per_host`` of ``spawn_procs``; none: one member, without dimensions.
        name: for reports.

    Raises:
        ValueError: for sizes below 1.
    """
    sizes = sizes or {}
    check_sizes("sizes", sizes, "process")
    _runtime.ensure(processes=False)
    shape = _whole(list(sizes), [int(size) for size in sizes.values()])
    mesh = LocalProcMesh([_core.node_id()] * len(shape), shape, name, owned=True)
    mesh._local = _core.new_actor_index(1)
    _inhabitants[mesh._local] = _Inhabitants()
    return mesh
