"""How methods are declared callable from elsewhere: ``@endpoint`` and ``@concurrent_endpoint``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Self

    from monarch._calls.endpoint import Endpoint
    from monarch._ports.port import Port

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:

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

__all__ = ["EndpointProperty", "concurrent_endpoint", "endpoint"]

CO_VARARGS, CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x04, 0x20, 0x80, 0x200  # as in inspect
SYNC, ASYNC, CONCURRENT = 0, 1, 2  # how a method runs: bindings/python/actor_cell.h, MethodKind
EXPLICIT_PORT = 4  # added to these


def is_async(function: Any) -> bool:
    """Whether a call gives a coroutine; of a plain decorator around (``functools.wraps``), whether it may."""
    while True:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & CO_COROUTINE:
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
        self._takes_port = explicit_response_port
        # As programs of the reference read it: there concurrent endpoints answer through a port under the hood.
        self._explicit_response_port = explicit_response_port or concurrent
        self._instrument = instrument
        self._propagate = propagate
        self.__name__ = getattr(method, "__name__", "endpoint")
        self.__qualname__ = getattr(method, "__qualname__", self.__name__)
        self.__doc__ = getattr(method, "__doc__", None)

    def __repr__(self) -> str:
        return f"<endpoint {self.__qualname__}>"

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
    if isinstance(method, EndpointProperty):
        raise TypeError(f"@endpoint stands twice above {method.__qualname__}")
    _check_target(method, "concurrent_endpoint" if concurrent else "endpoint", explicit_response_port)
    return EndpointProperty(
        method,
        concurrent=concurrent,
        explicit_response_port=explicit_response_port,
        instrument=instrument,
        propagate=propagate,
    )


def _check_target(method: Any, decorator: str, takes_port: bool) -> None:
    """Raises, where it stands, for what cannot be an endpoint."""
    for kind in (staticmethod, classmethod, property):
        if isinstance(method, kind):
            raise TypeError(f"@{decorator} declares methods of actors, which have a self: not a {kind.__name__}")
    name = getattr(method, "__qualname__", repr(method))
    if isinstance(method, type) or not callable(method):
        what = "a class" if isinstance(method, type) else "not callable"
        raise TypeError(f"@{decorator} declares methods of actors, but {name} is {what}")
    code = getattr(method, "__code__", None)
    if code is None or hasattr(method, "__wrapped__"):
        return  # only a call can tell
    if code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise TypeError(
            f"{name} is a generator, and an endpoint gives one answer: return a list, or take a port "
            f"(@{decorator}(explicit_response_port=True) or an argument) and send the values through it"
        )
    hidden = ["self", "port"][: 1 + takes_port]
    if code.co_argcount < len(hidden) and not code.co_flags & CO_VARARGS:
        raise TypeError(f"{name} is an endpoint: its first parameters are {' and '.join(hidden)}")
