"""The actor base class, and what a worker does with actors: construct, clean up, describe their failures."""

from __future__ import annotations

from _thread import allocate_lock

from monarch import _core
from monarch._context import ActorInstance, Creator
from monarch._geometry import Extent, Point
from monarch._mesh_trait import MeshTrait

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

    from monarch._future import Future

__all__ = ["Actor"]


class Actor(MeshTrait):
    """Base class of actors. Instances exist only through ``procs.spawn(name, Class, ...)``: one per process.

    Constructor, endpoints and hooks run in the target process, all on the actor's own thread, one after the other
    (``concurrent_endpoint`` is the exception). Optional hooks:

    - ``__cleanup__(self, exc)``, ``def`` or ``async def``, when it ends: ``exc`` is None after a stop, else the cause.
      It has 3 s when its process is stopped, 0.3 s when the script ends, and is not called after a crash.
    - ``_handle_undeliverable_message(self, message) -> bool`` for one-way messages of this actor that found nobody;
      unless it returns true, this actor fails.

    The mesh methods that it inherits are for type checkers, to which a spawned mesh is an instance of the class; on an
    instance they raise ``NotImplementedError``.
    """

    @property
    def logger(self) -> logging.Logger:
        """A ``logging.Logger`` named after the class, level DEBUG; the same one at each look."""
        import logging

        found = self.__dict__.get("_logger")
        if found is None:
            found = self.__dict__["_logger"] = logging.getLogger(type(self).__name__)
            found.setLevel(logging.DEBUG)
        return found

    @property
    def _shape(self) -> Any:
        raise NotImplementedError("an actor is not a mesh: the mesh methods belong to what spawn() returns")

    @property
    def initialized(self) -> Future[None]:
        """Of meshes only; on an actor ``NotImplementedError``."""
        raise NotImplementedError("an actor is not a mesh: `initialized` belongs to what spawn() returns")

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Of meshes only; on an actor ``NotImplementedError``."""
        raise NotImplementedError(
            "an actor is not a mesh: stop() belongs to what spawn() returns; an actor ends itself with "
            "context().actor_instance.stop()"
        )


def spawn_info(
    name: str, labels: list[str], sizes: list[int], creator: ActorInstance, procs: Any, substitutes: Any = ()
) -> Any:
    """What a new actor is told about itself: builtin types only, since each spawn pickles one."""
    rank = creator.rank
    extent = rank.extent
    who = (creator.name, rank.rank, extent.labels, extent.sizes, str(creator))
    return name, labels, sizes, who, procs, substitutes


patches: list[tuple[Any, Any]] = []  # monarch.testing.patch_actor: (original, mock), the last counts


def substitute(Class: Any, spawner: ActorInstance) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """What to spawn instead of ``Class``, and the substitutes that the new actor is to use in its turn.

    An actor uses those that were in force when it was spawned, the client those that are now. A mock's own spawns of
    what it stands for are not replaced: it may wrap the real thing.
    """
    in_force = tuple(patches) if spawner.creator is None else spawner._substitutes
    for original, mock in reversed(in_force):
        if original is Class:
            return mock, tuple(pair for pair in in_force if pair[0] is not original)
    return Class, in_force


# ---- The worker's side ----

_gate = allocate_lock()
_gate_open = True
_setup_error: BaseException | None = None


def hold_constructors() -> None:
    """Until release_constructors(): actors may be asked for before this process looks like the script."""
    global _gate_open
    _gate.acquire()
    _gate_open = False


def release_constructors(payload: dict[str, Any]) -> None:
    """Runs the mesh's bootstrap function, then lets actors be made."""
    global _gate_open, _setup_error
    setup = payload["setup"]
    if setup is not None:
        import _pickle as pickle

        try:
            outcome = pickle.loads(setup)()
            if hasattr(outcome, "__await__"):
                import asyncio

                asyncio.run(_wait(outcome))
        except BaseException as error:
            _setup_error = error
    _gate_open = True
    _gate.release()


async def _wait(awaitable: Any) -> None:
    await awaitable


def _raise_setup_error(*_: Any, **__: Any) -> Any:
    from monarch._exceptions import SetupFailed

    assert _setup_error is not None
    raise SetupFailed(_setup_error)


_threads = __import__("_thread")._local()  # .name: of this thread, which runs an actor


def wait_for_gate() -> None:
    if not _gate_open:
        with _gate:
            pass


def construct(cell: Any, value: tuple[Any, ...], rank: int) -> bool:
    """Makes the instance. Returns whether the actor needs an event loop."""
    cls, args, kwargs, (name, labels, sizes, creator, procs, substitutes) = value
    extent = Extent(labels, sizes)
    identity = ActorInstance(
        name,
        f"{cls.__module__}.{cls.__qualname__}",
        Point(rank, extent),
        (_core.node_id(), cell.index),
        Creator(creator[0], Point(creator[1], Extent(creator[2], creator[3])), creator[4]),
        procs,
        cell,
        substitutes,
    )
    from monarch import _endpoint, _logs

    _logs.watch()
    name_thread("monarch-actor-driver")
    table = _endpoint.table_of(cls)
    if _setup_error is not None:
        cell.set_up(object(), identity, extent, [(_raise_setup_error, _endpoint.SYNC)] * max(1, len(table.functions)))
        return False
    instance = cls.__new__(cls)
    functions = table.functions
    if not table.is_async:
        functions = [
            (_no_loop(f, cls), _endpoint.SYNC) if kind & 3 != _endpoint.SYNC else (f, kind) for f, kind in functions
        ]
    cell.set_up(instance, identity, extent, functions)
    instance.__init__(*args, **kwargs)
    return table.is_async


def name_thread(name: str) -> None:
    """Sets ``threading.current_thread().name``.

    ``threading`` makes an object for a thread that it did not start when it is first asked for. To make it here, only
    to give it its name, would be a third of the cost of an actor: it takes the name when it is made.
    """
    import threading

    known_threads: Any = threading
    _threads.name = name
    if not issubclass(known_threads._DummyThread, _NamedThread):
        known_threads._DummyThread = type("ActorThread", (_NamedThread, known_threads._DummyThread), {})
    known = known_threads._active.get(threading.get_ident())
    if known is not None:
        known.name = name


class _NamedThread:
    def __init__(self) -> None:
        super().__init__()
        name = getattr(_threads, "name", None)
        if name is not None:
            self.name = name


def _no_loop(function: Any, cls: type) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{cls.__qualname__}.{function.__name__} is async, but the endpoints of {cls.__qualname__} are all sync, "
            "so it has no event loop to run on"
        )

    return refuse


def format_failure(error: BaseException, identity: ActorInstance | None) -> str:
    """Why an actor has failed: who, where, then the traceback."""
    import os

    from monarch._exceptions import format_exception

    if identity is None:
        return format_exception(error).rstrip()
    rank = identity.rank
    where = f"rank {rank!r} of {identity.name!r}" if len(rank) else repr(identity.name)
    text = format_exception(error).rstrip().replace("\n", "\n  ")
    return f"{where} ({identity.class_name}, pid {os.getpid()}) failed: {type(error).__name__}: {error}\n  {text}"


def end_actor(cell: Any, failure: BaseException | None) -> None:
    """The last thing on the actor's thread: its __cleanup__ hook, and what it has sent and is held back.

    Async actors have run their hook on their loop.
    """
    from monarch import _endpoint, _runtime

    try:
        hook = getattr(cell.instance, "__cleanup__", None)
        if hook is not None and failure is None and not _endpoint.is_async(hook):
            hook(RuntimeError(cell.end_reason) if cell.failed else None)
    finally:
        _runtime.flush_ports(_runtime.limit("cleanup_timeout"))


class UndeliverableMessage:
    """A one-way message that found nobody: the argument of ``_handle_undeliverable_message``."""

    def __init__(self, sender: str, dest: str, text: str) -> None:
        self._sender = sender
        self._dest = dest
        self._text = text

    def sender(self) -> str:
        """The actor that sent it, as the chain of who made whom."""
        return self._sender

    def dest(self) -> str:
        """The actor that it was for, as the end of its ``actor_id``: ``<index>@node``."""
        return self._dest

    def error_msg(self) -> str:
        """Why it could not be delivered."""
        return self._text


def undeliverable(cell: Any, text: str, dest: tuple[int, int]) -> Any:
    """Asks the actor's hook about a message that found nobody, and ends it unless that says True.

    None, or a coroutine that does so.
    """
    hook = getattr(cell.instance, "_handle_undeliverable_message", None)
    dealt_with = False
    if hook is not None:
        dealt_with = hook(UndeliverableMessage(str(cell.identity), f"<{dest[1]:x}>@{dest[0]:016x}", text))
        if hasattr(dealt_with, "__await__"):
            return _end_unless(dealt_with, cell, text)
    if not dealt_with:
        cell.end(f"undeliverable message: {text}", True)
    return None


async def _end_unless(dealt_with: Any, cell: Any, text: str) -> None:
    if not await dealt_with:
        cell.end(f"undeliverable message: {text}", True)
