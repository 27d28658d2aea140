"""The actor base class, and what a worker does with actors: construct, clean up, describe their failures."""

from __future__ import annotations

import os
import sys
from _thread import _local as _ThreadLocal
from _thread import allocate_lock, get_ident

from monarch import _core
from monarch._context import ActorInstance
from monarch._geometry import Extent, Point
from monarch._mesh_trait import MeshTrait, Undefined

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

    from monarch._future import Future

__all__ = ["Actor"]

_LOGGER = "<logger>"  # in an actor's dictionary, where no attribute of its class can be


class Actor(MeshTrait):
    """Base class of actors. Instances exist only through ``procs.spawn(name, Class, ...)``: one per process.

    Constructor, endpoints and hooks run in the target process, all on the actor's own thread, one after the other
    (``concurrent_endpoint`` is the exception). Optional hooks:

    - ``__cleanup__(self, exc)``, ``def`` or ``async def``, when it ends: ``exc`` is None after a stop, else the cause.
      The actors and processes that it has spawned have ended by then.
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

        found = self.__dict__.get(_LOGGER)
        if found is None:
            found = self.__dict__[_LOGGER] = logging.getLogger(type(self).__name__)
            found.setLevel(logging.DEBUG)
        return found

    if not TYPE_CHECKING:
        _shape = Undefined("an actor is not a mesh: the mesh methods belong to what spawn() returns")

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
    """What a new actor is told about itself: without substitutes tuples and scalars, which need no pickle."""
    rank = creator.rank
    extent = rank.extent
    who = (creator.name, rank.rank, tuple(extent.labels), tuple(extent.sizes), str(creator))
    return name, tuple(labels), tuple(sizes), who, procs, substitutes


patches: list[tuple[Any, Any]] = []  # monarch.testing.patch_actor: (original, mock), the last counts


def substitute(Class: Any, spawner: ActorInstance) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """What to spawn instead of ``Class``, and the substitutes that the new actor is to use in its turn.

    An actor uses those that were in force when it was spawned, the client those that are now. A mock's own spawns of
    what it stands for are not replaced: it may wrap the real thing.
    """
    in_force = tuple(patches) if spawner._creator is None else spawner._substitutes
    if not in_force:
        return Class, in_force
    for original, mock in reversed(in_force):
        if original is Class:
            return mock, tuple(pair for pair in in_force if pair[0] is not original)
    return Class, in_force


# ---- The worker's side ----

_setup_error: BaseException | None = None


def run_setup(setup: bytes | None) -> None:
    """Runs the mesh's bootstrap function, pickled. What it raises is what every constructor then raises."""
    global _setup_error
    if setup is None:
        return
    from monarch import _forks

    try:
        _forks.call(_set_up, setup)
    except BaseException as error:
        _setup_error = error


def _set_up(setup: bytes) -> None:
    import _pickle as pickle

    outcome = pickle.loads(setup)()
    if hasattr(outcome, "__await__"):
        import asyncio

        asyncio.run(_wait(outcome))


async def _wait(awaitable: Any) -> None:
    await awaitable


def _raise_setup_error(*_: Any, **__: Any) -> Any:
    from monarch._exceptions import SetupFailed

    assert _setup_error is not None
    raise SetupFailed(_setup_error)


SYNC_THREAD = "monarch-actor-driver"
_thread_local = _ThreadLocal()  # .name: of this thread, which runs actors
_preparing = allocate_lock()
_table_of: Any = None  # _endpoint.table_of, once all is prepared
_known_threads: dict[int, Any] = {}  # those that `threading` has objects of


def _prepare() -> None:
    """Before the first actor of this process, on the thread of each that comes meanwhile."""
    global _table_of, _known_threads
    import threading

    from monarch import _endpoint, _logs

    with _preparing:
        if _table_of is not None:
            return
        module: Any = threading
        module._DummyThread = type("ActorThread", (_NamedThread, module._DummyThread), {})
        os.register_at_fork(after_in_child=_become_main_thread)
        _known_threads = module._active
        _logs.watch()
        _table_of = _endpoint.table_of


def _become_main_thread() -> None:
    """In a child that an actor's thread has forked: ``threading`` takes the object of that thread for its main thread.

    Python up to 3.11 cannot end by such a one: a child of ``multiprocessing`` would have the exit code 1.
    """
    import threading

    module: Any = threading
    main: Any = module._main_thread
    if _NamedThread in type(main).__mro__ and getattr(main, "_tstate_lock", main) is None:
        main.__class__ = module._MainThread
        main._daemonic = False
        main._set_tstate_lock()


def _find_class(module: str, qualname: str) -> Any:
    __import__(module)  # also where it is in sys.modules: another thread may be in the middle of importing it
    found: Any = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


class _NamedThread:
    """Gives its name to the object that ``threading`` makes for a thread that it did not start when it is asked for it.

    To make it for each actor, only to give it its name, would be a third of what an actor costs.
    """

    def __init__(self) -> None:
        super().__init__()
        name = getattr(_thread_local, "name", None) or (SYNC_THREAD if _core.on_actor_thread() else None)
        if name is not None:
            self.name = name


def name_thread(name: str) -> None:
    """Sets ``threading.current_thread().name`` of a thread that runs actors."""
    _thread_local.name = name
    known = _known_threads.get(get_ident())
    if known is not None:
        known.name = name


_last_extent: Any = ((), (), Extent([], []))


def _extent(labels: tuple[str, ...], sizes: tuple[int, ...]) -> Extent:
    """That of the actor before, if it is the same, as it mostly is where many are spawned."""
    global _last_extent
    last_labels, last_sizes, extent = _last_extent
    if labels != last_labels or sizes != last_sizes:
        extent = Extent(labels, sizes)
        _last_extent = labels, sizes, extent
    return extent


def construct(cell: Any, value: tuple[Any, ...], rank: int) -> bool:
    """Makes the instance. Returns whether the actor needs an event loop.

    A new thread runs it, for which all is slow the first time; so it does no more than it must.
    """
    cls, args, kwargs, (name, labels, sizes, creator, procs, substitutes) = value
    if _table_of is None:
        _prepare()
    if kwargs is None:  # nothing was pickled
        cls, kwargs = _find_class(*cls), {}
    extent = _extent(labels, sizes)
    table = _table_of(cls)
    identity = ActorInstance(name, table.class_name, Point(rank, extent), creator, procs, cell, substitutes)
    if get_ident() in _known_threads:  # it has run an actor before, which asked
        name_thread(SYNC_THREAD)
    if _setup_error is not None:
        from monarch._endpoint import SYNC

        failing = [(_raise_setup_error, SYNC)] * max(1, len(table.functions))
        cell.set_up(object(), identity, extent, _core.Methods(failing))
        return False
    instance = cls.__new__(cls)
    cell.set_up(instance, identity, extent, table.methods)
    instance.__init__(*args, **kwargs)
    return table.is_async


def format_failure(error: BaseException, identity: ActorInstance | None) -> str:
    """Why an actor has failed: who, where, then the traceback."""
    from monarch._exceptions import format_exception

    if identity is None:
        return format_exception(error).rstrip()
    rank = identity.rank
    where = f"rank {rank!r} of {identity.name!r}" if len(rank) else repr(identity.name)
    text = format_exception(error).rstrip().replace("\n", "\n  ")
    return f"{where} ({identity.class_name}, pid {os.getpid()}) failed: {type(error).__name__}: {error}\n  {text}"


def end_actor(cell: Any, failure: BaseException | None) -> None:
    """The last on the actor's thread: what it owns ends, its __cleanup__ hook runs, what it has held back is sent.

    Async actors have run their hook on their loop.
    """
    from monarch import _endpoint, _forks, _runtime

    if cell.identity._owned is not None:
        from monarch import _owned

        _owned.stop_and_wait(cell.identity, _runtime.limit("process_exit_timeout"))
    try:
        hook = getattr(cell.instance, "__cleanup__", None)
        if hook is not None and failure is None and not _endpoint.is_async(hook):
            _forks.call(hook, RuntimeError(cell.end_reason) if cell.failed else None)
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
        from monarch import _forks

        dealt_with = _forks.call(hook, UndeliverableMessage(str(cell.identity), f"<{dest[1]:x}>@{dest[0]:016x}", text))
        if hasattr(dealt_with, "__await__"):
            return _end_unless(dealt_with, cell, text)
    if not dealt_with:
        cell.end(f"undeliverable message: {text}", True)
    return None


async def _end_unless(dealt_with: Any, cell: Any, text: str) -> None:
    from monarch import _forks

    answer = await dealt_with
    _forks.end_if_child()
    if not answer:
        cell.end(f"undeliverable message: {text}", True)
