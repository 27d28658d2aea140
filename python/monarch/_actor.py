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

__all__ = ["Actor"]


class Actor(MeshTrait):
    """Base class of actors. Instances exist only through ``procs.spawn(name, Class, ...)``: one per process.

    ``__init__`` runs in the target process, on the actor's own thread, as all its endpoints do. Optional hooks:
    ``__cleanup__(self, exc)`` when it ends (``exc`` is None on a normal stop), and
    ``_handle_undeliverable_message(self, message) -> bool`` for one-way messages of this actor that found nobody.

    The mesh methods that it inherits are for type checkers, to which a spawned mesh is an instance of the class.
    """

    @property
    def logger(self) -> logging.Logger:
        """A logger named after the class, level DEBUG."""
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
    def initialized(self) -> Any:
        raise NotImplementedError("an actor is not a mesh: `initialized` belongs to what spawn() returns")

    def stop(self, reason: str = "stopped by client") -> Any:
        raise NotImplementedError(
            "an actor is not a mesh: stop() belongs to what spawn() returns; an actor ends itself with "
            "context().actor_instance.stop()"
        )


def spawn_info(name: str, labels: list[str], sizes: list[int], creator: ActorInstance, procs: Any, index: int) -> Any:
    """What a new actor is told about itself: builtin types only, since each spawn pickles one."""
    rank = creator.rank
    extent = rank.extent
    who = (creator.name, rank.rank, extent.labels, extent.sizes, str(creator))
    return name, labels, sizes, who, procs, index


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
    assert _setup_error is not None
    raise _setup_error


_identities = __import__("_thread")._local()  # .current: the identity of the actor on this thread


def wait_for_gate() -> None:
    if not _gate_open:
        with _gate:
            pass


def construct(cell: Any, value: tuple[Any, ...], rank: int) -> bool:
    """Makes the instance. Returns whether the actor needs an event loop."""
    cls, args, kwargs, (name, labels, sizes, creator, procs, index) = value
    extent = Extent(labels, sizes)
    identity = ActorInstance(
        name,
        f"{cls.__module__}.{cls.__qualname__}",
        Point(rank, extent),
        (_core.node_id(), index),
        Creator(creator[0], Point(creator[1], Extent(creator[2], creator[3])), creator[4]),
        procs,
        cell,
    )
    _identities.current = identity
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
    _identities.instance = instance
    instance.__init__(*args, **kwargs)
    return table.is_async


def name_thread(name: str) -> None:
    """Sets ``threading.current_thread().name``.

    ``threading`` makes an object for a thread that it did not start when it is first asked for. To make it here, only
    to give it its name, would be a third of the cost of an actor: it takes the name when it is made.
    """
    import threading

    known_threads: Any = threading
    _identities.thread_name = name
    if not issubclass(known_threads._DummyThread, _NamedThread):
        known_threads._DummyThread = type("ActorThread", (_NamedThread, known_threads._DummyThread), {})
    known = known_threads._active.get(threading.get_ident())
    if known is not None:
        known.name = name


class _NamedThread:
    def __init__(self) -> None:
        super().__init__()
        name = getattr(_identities, "thread_name", None)
        if name is not None:
            self.name = name


def _no_loop(function: Any, cls: type) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{cls.__qualname__}.{function.__name__} is async, but the endpoints of {cls.__qualname__} are all sync, "
            "so it has no event loop to run on"
        )

    return refuse


def format_failure(error: BaseException) -> str:
    """Why this actor has failed: who, where, then the traceback."""
    import os

    from monarch._exceptions import format_exception

    identity = getattr(_identities, "current", None)
    if identity is None:
        return format_exception(error).rstrip()
    rank = identity.rank
    where = f"rank {rank!r} of {identity.name!r}" if len(rank) else repr(identity.name)
    text = format_exception(error).rstrip().replace("\n", "\n  ")
    return f"{where} ({identity.class_name}, pid {os.getpid()}) failed: {type(error).__name__}: {error}\n  {text}"


def end_actor(cell: Any, failure: BaseException | None) -> None:
    """The last thing on the actor's thread: its __cleanup__ hook. Async actors have run theirs on their loop."""
    instance = getattr(_identities, "instance", None)
    _identities.current = None
    _identities.instance = None
    hook = getattr(instance, "__cleanup__", None)
    if hook is None or failure is not None:
        return
    from monarch import _endpoint

    if not _endpoint.is_async(hook):
        hook(RuntimeError(cell.end_reason) if cell.failed else None)


class UndeliverableMessage:
    """Argument of ``_handle_undeliverable_message``."""

    def __init__(self, sender: str, dest: str, text: str) -> None:
        self._sender = sender
        self._dest = dest
        self._text = text

    def sender(self) -> str:
        return self._sender

    def dest(self) -> str:
        """The actor that it was for, as the end of its ``actor_id``: ``<index>@node``."""
        return self._dest

    def error_msg(self) -> str:
        return self._text


def undeliverable(cell: Any, text: str, dest: tuple[int, int]) -> bool:
    instance = getattr(_identities, "instance", None)
    hook = getattr(instance, "_handle_undeliverable_message", None)
    if hook is None:
        return False
    identity = getattr(_identities, "current", None)
    return bool(hook(UndeliverableMessage(str(identity), f"<{dest[1]:x}>@{dest[0]:016x}", text)))
