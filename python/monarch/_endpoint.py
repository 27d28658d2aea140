"""Endpoints: how methods are declared callable from elsewhere, and how they are called."""

from __future__ import annotations

from monarch import _core
from monarch._pickle import BY_VALUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

    from typing_extensions import Self

    from monarch._future import Future
    from monarch._mesh import ActorMesh
    from monarch._port import Port
    from monarch._value_mesh import ValueMesh

    P = ParamSpec("P")
    R = TypeVar("R")

    class _Decorator(Protocol):
        """``@endpoint(...)``"""

        @overload
        def __call__(self, method: _Async[P, R], /) -> EndpointProperty[P, R]: ...
        @overload
        def __call__(self, method: _Sync[P, R], /) -> EndpointProperty[P, R]: ...

    class _AsyncDecorator(Protocol):
        """``@concurrent_endpoint(...)``"""

        def __call__(self, method: _Async[P, R], /) -> EndpointProperty[P, R]: ...

    class _PortDecorator(Protocol):
        """``@endpoint(explicit_response_port=True)``: callers do not see the port."""

        def __call__(self, method: _WithPort[R, P], /) -> EndpointProperty[P, R]: ...

    _Async = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
    _Sync = Callable[Concatenate[Any, P], R]
    _WithPort = Callable[Concatenate[Any, Port[R], P], Any]
else:
    from monarch._value_mesh import Generic, GenericAlias, R, overload

    P = None

__all__ = ["Endpoint", "EndpointProperty", "as_endpoint", "concurrent_endpoint", "endpoint", "send"]

SYNC, ASYNC, CONCURRENT = 0, 1, 2  # bindings/python/actor_cell.h, MethodKind
EXPLICIT_PORT = 4  # added to these
PORT_FLAG = 128  # wire/frame.h, kFlagPort
_CO_VARARGS, _CO_VARKEYWORDS, _CO_COROUTINE = 0x04, 0x08, 0x80  # inspect's flags, without importing it
_ANY_COUNT = 1 << 30


def is_async(function: Any) -> bool:
    """Whether a call gives a coroutine; of a plain decorator around (``functools.wraps``), whether it may."""
    while True:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _CO_COROUTINE:
            return True
        if getattr(function, "_is_coroutine_mark", None) is not None:
            return True
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return False


class EndpointProperty(Generic[P, R]):
    """What a decorated method is on its class. On a spawned mesh the same name is an ``Endpoint``."""

    def __init__(
        self, method: Any, *, concurrent: bool, explicit_response_port: bool, instrument: bool, propagate: Any
    ):
        self.__dict__.update(getattr(method, "__dict__", {}))  # attributes of decorators below survive
        self._method = method
        self._concurrent = concurrent
        self._explicit_response_port = explicit_response_port
        self._instrument = instrument
        self._propagate = propagate
        self.__name__ = getattr(method, "__name__", "endpoint")
        self.__qualname__ = getattr(method, "__qualname__", self.__name__)
        self.__doc__ = getattr(method, "__doc__", None)

    @property
    def kind(self) -> int:
        if self._concurrent:
            return CONCURRENT
        return ASYNC if is_async(self._method) else SYNC

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> Endpoint[P, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._method.__get__(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__qualname__
        raise TypeError(
            f"{name} is an endpoint: it runs in a spawned actor. Spawn the class (procs.spawn(name, Class)) and call "
            f"mesh.{self.__name__}.call(...), .call_one(...) or .broadcast(...)."
        )


@overload
def endpoint(
    method: _Async[P, R],
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    method: _Sync[P, R],
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    method: None = None,
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
) -> _Decorator: ...
@overload
def endpoint(
    method: None = None, *, propagate: Any = None, explicit_response_port: Literal[True], instrument: bool = True
) -> _PortDecorator: ...
def endpoint(
    method: Any = None, *, propagate: Any = None, explicit_response_port: bool = False, instrument: bool = True
) -> Any:
    """Makes a method (``def`` or ``async def``) callable on the meshes of its actor: ``@endpoint``, ``@endpoint(...)``.

    The method runs on its actor's thread, one message at a time; an ``async def`` is awaited there before the next.

    Args:
        method: what stands below the decorator.
        propagate: taken, and has no effect yet; ``"cached"`` and ``"mocked"`` are a ``ValueError``.
        explicit_response_port: the method's first parameter after ``self`` is a port, which callers do not see: it
            answers with ``port.send(value)`` or ``port.exception(error)``, now or later, from any thread; its return
            value is ignored.
        instrument: taken, and has no effect yet.
    """
    return _declare(method, False, propagate, explicit_response_port, instrument)


@overload
def concurrent_endpoint(
    method: _Async[P, R],
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
) -> EndpointProperty[P, R]: ...
@overload
def concurrent_endpoint(
    method: None = None,
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
) -> _AsyncDecorator: ...
@overload
def concurrent_endpoint(
    method: None = None, *, propagate: Any = None, explicit_response_port: Literal[True], instrument: bool = True
) -> _PortDecorator: ...
def concurrent_endpoint(
    method: Any = None, *, propagate: Any = None, explicit_response_port: bool = False, instrument: bool = True
) -> Any:
    """As ``endpoint``, for ``async def`` only, else ``ValueError``: each call is a task of its own, so calls overlap.

    Bodies start in the order of the messages. Tasks that still run when the actor ends are cancelled.

    Args:
        method: what stands below the decorator.
        propagate: as for ``endpoint``.
        explicit_response_port: as for ``endpoint``.
        instrument: as for ``endpoint``.
    """
    return _declare(method, True, propagate, explicit_response_port, instrument)


def _declare(method: Any, concurrent: bool, propagate: Any, explicit_response_port: bool, instrument: bool) -> Any:
    if method is None:
        return lambda function: _declare(function, concurrent, propagate, explicit_response_port, instrument)
    if concurrent and isinstance(method, EndpointProperty):
        raise ValueError("concurrent_endpoint does not wrap @endpoint; pass endpoint options to @concurrent_endpoint")
    if concurrent and not is_async(method):
        raise ValueError("concurrent_endpoint can only wrap async endpoints")
    if propagate in ("cached", "mocked"):
        raise ValueError(f"propagate={propagate!r} is for remote functions, not for endpoints of actors")
    return EndpointProperty(
        method,
        concurrent=concurrent,
        explicit_response_port=explicit_response_port,
        instrument=instrument,
        propagate=propagate,
    )


class ClassTable:
    """The methods of an actor class by number, as both ends derive them: endpoints first, then its other methods."""

    native = False

    def __init__(self, cls: type) -> None:
        found = _methods_of(cls)
        endpoints = sorted(name for name, value in found.items() if isinstance(value, EndpointProperty))
        others = sorted(
            name
            for name, value in found.items()
            if not name.startswith("__") and callable(value) and not isinstance(value, (EndpointProperty, type))
        )
        self.names = endpoints + others
        self.endpoints = set(endpoints)
        self.taken: list[str] | None = None  # those that are names of mesh attributes, once known
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.functions: list[tuple[Any, int]] = []
        for name in self.names:
            value = found[name]
            if isinstance(value, EndpointProperty):
                port = EXPLICIT_PORT if value._explicit_response_port else 0
                self.functions.append((value._method, value.kind + port))
            else:
                self.functions.append((value, ASYNC if is_async(value) else SYNC))
        kinds = [kind for (_, kind), name in zip(self.functions, self.names) if name in self.endpoints]
        hooks = [getattr(cls, name, None) for name in _HOOKS]
        # A class without endpoints is an async actor too, as in the reference.
        self.is_async = (
            not kinds or any(kind & ~EXPLICIT_PORT != SYNC for kind in kinds) or any(is_async(hook) for hook in hooks)
        )
        # What its actors run: without a loop there is no way to run coroutines.
        run = self.functions
        if not self.is_async:
            run = [(_no_loop(f, cls), SYNC) if kind & ~EXPLICIT_PORT != SYNC else (f, kind) for f, kind in run]
        self.methods = _core.Methods(run)
        # Code by value comes again with each message, and may have changed: a cell of a notebook that was run again.
        comes_again = code_arrives and cls.__module__ in BY_VALUE
        self._found = {name: found[name] for name in self.names} if comes_again else None
        self.class_name = f"{cls.__module__}.{cls.__qualname__}"
        self.ranges = [_arity(function, 2 if kind & EXPLICIT_PORT else 1) for function, kind in self.functions]

    def is_of(self, cls: type) -> bool:
        """Whether it still says what ``cls`` has."""
        known = self._found
        if known is None:
            return True
        found = _methods_of(cls)
        return all(found.get(name) is value for name, value in known.items())


def _methods_of(cls: type) -> dict[str, Any]:
    """The attributes of a class and its bases, without those of ``Actor``."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base is not object and base.__module__ not in ("monarch._actor", "monarch._mesh_trait"):
            found.update(vars(base))
    return found


def _no_loop(function: Any, cls: type) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{cls.__qualname__}.{function.__name__} is async, but the endpoints of {cls.__qualname__} are all sync, "
            "so it has no event loop to run on"
        )

    return refuse


_HOOKS = ("__cleanup__", "__supervise__", "_handle_undeliverable_message")
code_arrives = False  # in a worker; a script has the classes of `__main__` themselves
_tables: Any = None  # WeakKeyDictionary: class -> ClassTable
_last: Any = (lambda: None, None)  # who was asked for last, since it mostly is the next one too


def table_of(cls: Any) -> Any:
    """The methods of an actor class: a Python one, or one from ``monarch.cpp.load``."""
    global _tables, _last
    last_cls, table = _last
    if last_cls() is cls and (table._found is None or table.is_of(cls)):
        return table
    table = cls.__dict__.get("_native_table")
    if table is not None:
        return table
    import weakref

    if _tables is None:
        _tables = weakref.WeakKeyDictionary()
    table = _tables.get(cls)
    if table is None or not table.is_of(cls):
        table = _tables[cls] = ClassTable(cls)
    _last = weakref.ref(cls), table
    return table


def _arity(function: Any, hidden: int = 1) -> tuple[int, int]:
    """How many positional arguments after the hidden ones (self, a response port) are surely right.

    (1, 0) if only a look at the signature can tell.
    """
    if function is object.__init__:
        return 0, 0
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or code.co_kwonlyargcount:
        return 1, 0
    most = code.co_argcount - hidden
    if most < 0:
        return (0, _ANY_COUNT) if code.co_flags & _CO_VARARGS else (1, 0)
    least = max(0, most - len(function.__defaults__ or ()))
    return least, _ANY_COUNT if code.co_flags & _CO_VARARGS else most


def check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], hidden: int = 1) -> None:
    """Raises TypeError if a method cannot be called with these arguments (self and a port not among them)."""
    import inspect

    if function is object.__init__:  # its signature claims to take anything
        function = _takes_nothing
    inspect.signature(function).bind(*(None,) * hidden, *args, **kwargs)


def _takes_nothing(self: Any) -> None: ...


class Endpoint(_core.EndpointBase, Generic[P, R]):
    """One endpoint of a mesh. Each adverb pickles and sends at once; only collecting the results waits.

    All take the arguments of the method, and raise here, with nothing sent, what is wrong with them: ``TypeError`` for
    count and keywords, what pickle says otherwise. Futures raise ``ActorError`` if the endpoint raised,
    ``SupervisionError`` if a rank cannot answer. Messages to one actor arrive in the order of the calls. Any thread may
    call.

    ``broadcast`` (any adverb, with more than 256 KiB of arguments) waits while one of its actors has 64 MiB of messages
    waiting, until half of them are gone: GIL released, Ctrl-C ends it, and after 5 s a line on stderr says who is slow.
    On an event loop it blocks that loop meanwhile. An actor that waits for others itself keeps nobody waiting.

    In annotations: ``Endpoint[[int], str]`` takes an int and answers with a string.
    """

    def __init__(
        self, ref: Any, number: int, least: int, most: int, native: bool, flags: int, mesh: ActorMesh, name: str
    ) -> None:
        self._mesh = mesh
        self._number = number
        self._name = name
        self._flags = flags
        self._options = (0.0, False)

    if TYPE_CHECKING:

        def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
            """Asks every rank; the future gives a ``ValueMesh`` of the answers, of the shape of this mesh.

            If ranks raise, the future raises the first error that arrives.
            """

        def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
            """Asks the only member of a mesh of one, else ``ValueError``; the future gives its answer."""

        def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
            """Sends to every rank and wants no answer. An exception there ends that actor."""

    else:

        def __class_getitem__(cls, item):
            # lists, of the arguments' types, would make what names it unhashable
            return GenericAlias(cls, tuple(tuple(part) if type(part) is list else part for part in item))

    @overload
    def options(self, *, deadline: float | None = None, partial: Literal[False] | None = None) -> Endpoint[P, R]: ...
    @overload
    def options(self, *, deadline: float | None = None, partial: Literal[True]) -> Endpoint[P, R | Exception]: ...
    def options(self, *, deadline: float | None = None, partial: bool | None = None) -> Any:
        """The same endpoint with options for its calls; what is not given stays as it was.

        Args:
            deadline: seconds until a call is given up, as in ``with monarch.actor.deadline(seconds)``.
            partial: ``call`` waits for every rank and gives values and, in the place of those that failed, exceptions.
        """
        seconds, some = self._options
        if deadline is not None:
            from monarch._deadline import check_seconds

            seconds = check_seconds(deadline)
        if partial is not None:
            some = partial
        return self._mesh._make_endpoint(self._name, self._flags)._with_options((seconds, some))

    def _with_options(self, options: tuple[float, bool]) -> Self:
        self._options = options
        self._set_options(*options)
        return self

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Asks one rank, uniformly at random for each call (load is not considered); the future gives its answer."""
        _, chosen = self._choose_rank()
        return chosen.call_one(*args, **kwargs)

    def _choose_rank(self) -> tuple[int, Endpoint[P, R]]:
        import random

        rank = random.randrange(len(self._mesh))
        return rank, self._mesh._choice(rank, self)._with_options(self._options)

    @property
    def _answers_by_port(self) -> bool:
        table = table_of(self._mesh._class)
        return not table.native and bool(table.functions[self._number][1] & EXPLICIT_PORT or self._flags & PORT_FLAG)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Asks every rank with one call; gives a future per rank, the i-th of which is the i-th answer to arrive."""
        return _Stream(self._stream(*args, **kwargs))

    def rref(self, *args: Any, **kwargs: Any) -> Any:
        """Not there yet: ``NotImplementedError``."""
        from monarch._not_yet import not_yet

        raise not_yet("Endpoint.rref")

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"the endpoint {self} cannot be called like a function: say .call(...) for all ranks, .call_one(...) for "
            "a single actor, .choose(...), .stream(...) or .broadcast(...)"
        )

    if not TYPE_CHECKING:
        __call__ = _refuse  # for type checkers there is none

    def __str__(self) -> str:
        return f"{self._mesh._name}.{self._name}"

    def __repr__(self) -> str:
        return f"<endpoint {self} of {self._mesh!r}>"


class _Stream:
    """What :meth:`Endpoint.stream` gives. Programs from the time when that gave values say ``async for``."""

    def __init__(self, futures: list[Future[Any]]) -> None:
        self._futures = iter(futures)

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Future[Any]:
        return next(self._futures)

    def __aiter__(self) -> AsyncIterator[Any]:
        from monarch._old_spellings import deprecated

        deprecated("stream() gives futures: say `for future in mesh.endpoint.stream(...): await future`")
        return self._values()

    async def _values(self) -> AsyncIterator[Any]:
        for future in self._futures:
            yield await future


def bind_arguments(ep: Endpoint[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The core's slow path: counts or keywords that the numbers of the table do not cover."""
    ep._mesh._check_arguments(ep, args, kwargs)


class PlainMethod:
    """What a method without @endpoint is on a mesh: something that says what to do, and that as_endpoint() takes."""

    def __init__(self, mesh: ActorMesh, name: str) -> None:
        self._mesh = mesh
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"Actor {self._mesh._class}.{self._name} is not annotated as an endpoint. To call it as one, add a "
            "@endpoint decorator to it, or directly wrap it in one as_endpoint(obj.method).call(...)"
        )


@overload
def as_endpoint(
    method: Callable[P, Coroutine[Any, Any, R]],
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    method: Callable[P, R], *, propagate: Any = None, explicit_response_port: Literal[False] = False
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    method: Callable[Concatenate[Port[R], P], Any], *, propagate: Any = None, explicit_response_port: Literal[True]
) -> Endpoint[P, R]: ...
def as_endpoint(method: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> Any:
    """Makes a method without decorator of a spawned actor callable: ``as_endpoint(mesh.method).call(...)``.

    An ``async def`` method of an actor whose endpoints are all ``def`` has no event loop to run on: ``ActorError``
    around ``TypeError``.

    Args:
        method: of a mesh; anything else is a ``ValueError``.
        propagate: as for ``endpoint``.
        explicit_response_port: as for ``endpoint``.
    """
    if not isinstance(method, PlainMethod):
        raise ValueError("expected an method of a spawned actor")
    return method._mesh._make_endpoint(method._name, PORT_FLAG if explicit_response_port else 0)


def send(
    endpoint: Endpoint[P, R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[R] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Sends one message to the actors of the endpoint's mesh; whoever answers does so through a port.

    An endpoint with an explicit response port is given ``port`` itself, and may send through it as often as it likes.

    Args:
        endpoint: of a mesh, ``mesh.method``.
        args: the positional arguments.
        kwargs: the keyword arguments.
        port: where the answers go, each with the rank of its actor, failures as exceptions; without one nobody answers,
            as for ``broadcast``. It may be the explicit response port of a call, whose answer is then the first one.
        selection: all actors, or one at random (``"choose"``); another one is a ``ValueError``.
    """
    if selection not in ("all", "choose"):
        raise ValueError(f"Invalid selection: {selection}")
    rank, target = endpoint._choose_rank() if selection == "choose" else (0, endpoint)
    if port is None:
        target.broadcast(*args, **kwargs)
    elif target._answers_by_port:
        bind_arguments(target, args, kwargs)
        target._send_with_port((port, *args), kwargs)
    else:
        target._send(port, rank, *args, **kwargs)
