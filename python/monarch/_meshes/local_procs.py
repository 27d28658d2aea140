"""Meshes in the process of a test: ``monarch.testing.local_procs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._calls.python_futures import on_thread
from monarch._checks import check_sizes
from monarch._meshes import block_end, inhabitants
from monarch._meshes.actor_mesh import ActorMesh
from monarch._meshes.mesh import STOPPED_BY_CLIENT, whole
from monarch._meshes.proc_mesh import ProcMesh
from monarch._runtime import runtime

if TYPE_CHECKING:
    from monarch._calls.future import Future

__all__ = ["LocalProcMesh", "local_procs"]


class LocalProcMesh(ProcMesh):
    """What ``monarch.testing.local_procs(...)`` returns: a ``ProcMesh`` whose actors live in this process."""

    _at_interrupt = "ends the wait"
    _stopping: Future[Any] | None = None
    _actors: list[ActorMesh]

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops what was spawned on this mesh, and by those actors. Starts at once; twice is fine.

        Actors handle what was sent before, then run ``__cleanup__``. A thread cannot be killed: the future waits for an
        endpoint that does not return, ``with`` gives up after ``process_exit_timeout`` (10 s) and names the actors: in
        a ``TimeoutError``, or on stderr if an exception has left the block. Ctrl-C ends the wait.
        """
        if self._stopping is not None:
            return self._stopping
        self._stopped.append(reason)
        here = inhabitants.known[self._local]
        with here.lock:
            del inhabitants.known[self._local]
        self._actors = here.actors
        ids = [member for mesh in here.actors for member in mesh._ids]
        stopping = _core.MeshRef(ids, None, False).stop(reason) if ids else _core.completed_future(None)
        ends = [mesh.stop(reason) for mesh in here.procs]
        if ends:
            stopping = on_thread(lambda: [end.get() for end in (*ends, stopping)] and None, "monarch-local-stop")
        self._stopping = stopping
        return stopping

    def _names_left(self) -> str:
        names = {mesh._name for mesh in self._actors for node, index in mesh._ids if not _core.actor_end(index)}
        return ", ".join(sorted(names))

    def _not_ended(self) -> str:
        return f"the local actors {self._names_left()}"

    def _kill(self) -> Future[None]:
        return _core.completed_future(None)  # nobody can

    def _still_there(self, error: BaseException | None) -> None:
        text = f"these actors have not ended: {self._names_left()}; what are their endpoints doing?"
        if error is None:
            raise TimeoutError(text) from None
        _core.log_line(text)

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        try:
            block_end.wait(self, self.stop(), error, runtime.limit("process_exit_timeout"))
        except TimeoutError:
            self._still_there(error)
        self._take_up_failures(error)

    async def __aexit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        import asyncio

        try:
            await block_end.wait_async(self, self.stop(), error, runtime.limit("process_exit_timeout"))
        except (TimeoutError, asyncio.TimeoutError):
            self._still_there(error)
        self._take_up_failures(error)

    def _take_up_failures(self, error: BaseException | None) -> None:
        if error is None:
            block_end.ended({mesh._supervised for mesh in self._actors})


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
    runtime.ensure(processes=False)
    shape = whole(list(sizes), [int(size) for size in sizes.values()])
    mesh = LocalProcMesh([_core.node_id()] * len(shape), shape, name, owned=True)
    mesh._local = _core.new_actor_index(1)
    inhabitants.known[mesh._local] = inhabitants.Inhabitants()
    return mesh
