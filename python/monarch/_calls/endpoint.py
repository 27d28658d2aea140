"""Endpoints of meshes: how actors are called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from monarch import _core
from monarch._actors.class_table import table_of
from monarch._actors.declarations import EXPLICIT_PORT
from monarch._checks import names_options
from monarch._notices import deprecated, not_yet
from monarch._runtime.deadline import check_seconds

if TYPE_CHECKING:
    from typing_extensions import Self

    from monarch._calls.future import Future
    from monarch._meshes.actor_mesh import ActorMesh
    from monarch._meshes.remote_results import RemoteResult
    from monarch._ports.port import Port
    from monarch._values.value_mesh import ValueMesh

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Endpoint", "as_endpoint", "send"]

QUIET_FLAG, PORT_FLAG, KEEP_FLAG = 32, 128, 512  # wire/frame.h
_REDUCERS = {"sum": 1, "min": 2, "max": 3, "count": 4, "all_equal": 5, "concat": 6}  # wire/reduce.h


class _MethodSignature:
    """``inspect.signature(mesh.method)``: that of the method, as callers see it."""

    def __get__(self, instance: Endpoint[Any, Any] | None, owner: Any = None) -> Any:
        if instance is None:
            return None
        table = table_of(instance._mesh._class)
        if table.native:
            raise AttributeError("__signature__")
        import inspect

        signature = inspect.signature(table.functions[instance._number][0])
        hidden = 2 if instance._answers_by_port else 1
        return signature.replace(parameters=list(signature.parameters.values())[hidden:])


class Endpoint(_core.EndpointBase, Generic[P, R]):
    """One endpoint of a mesh. Each adverb pickles and sends at once; only collecting the results waits.

    All take the arguments of the method, and raise here, with nothing sent, what is wrong with them: ``TypeError`` for
    count and keywords, what pickle says otherwise. Futures raise ``ActorError`` if the endpoint raised,
    ``SupervisionError`` if a rank cannot answer. Messages to one actor arrive in the order of the calls. Any thread may
    call.

    ``broadcast`` waits while one of its actors has 64 MiB of messages waiting, until half of them are gone: GIL
    released, Ctrl-C ends it, and after 5 s a line on stderr says who is slow. So does any call with 256 KiB of
    arguments, and any at all while this process waits for the answers to 4,096. On an event loop that blocks the loop:
    ``await mesh.method.ready()`` before. An actor that waits for others itself keeps nobody waiting.

    In annotations: ``Endpoint[[int], str]`` takes an int and answers with a string.
    """

    def __init__(
        self, ref: Any, number: int, least: int, most: int, native: bool, flags: int, mesh: ActorMesh, name: str
    ) -> None:
        self._mesh = mesh
        self._number = number
        self._flags = flags
        self._options = (0.0, False, 0)
        self._call_it(name)
        table = table_of(mesh._class)
        if not table.native:
            self.__doc__ = table.functions[number][0].__doc__

    def _call_it(self, name: str) -> None:
        """What it is called in all that is told of it."""
        self._name = name
        self._set_label(f"{self._mesh._name}.{name}")

    __signature__ = _MethodSignature()
    _first_rank = 0  # in its mesh, of the rank 0 that it reaches

    if TYPE_CHECKING:

        def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
            """Asks every rank; the future gives a ``ValueMesh`` of the answers, of the shape of this mesh.

            If ranks raise, the future raises the first error that arrives.
            """

        def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
            """Asks the only member of a mesh of one, else ``ValueError``; the future gives its answer."""

        def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
            """Sends to every rank and wants no answer. An exception there ends that actor."""

    @overload
    def options(
        self, *, deadline: float | None = None, partial: Literal[False] | None = None, results: None = None
    ) -> Endpoint[P, R]: ...
    @overload
    def options(
        self, *, deadline: float | None = None, partial: Literal[True], results: None = None
    ) -> Endpoint[P, R | Exception]: ...
    @overload
    def options(
        self, *, deadline: float | None = None, partial: Literal[False] | None = None, results: Literal["remote"]
    ) -> Endpoint[P, RemoteResult[R]]: ...
    @overload
    def options(
        self, *, deadline: float | None = None, partial: Literal[True], results: Literal["remote"]
    ) -> Endpoint[P, RemoteResult[R] | Exception]: ...
    @overload
    def options(
        self, *, deadline: float | None = None, partial: bool | None = None, results: Literal["local"]
    ) -> Endpoint[P, Any]: ...
    @overload
    def options(
        self, *, deadline: float | None = None, reduce: Literal["sum", "min", "max", "all_equal"]
    ) -> ReducedEndpoint[P, R]: ...
    @overload
    def options(self, *, deadline: float | None = None, reduce: Literal["count"]) -> ReducedEndpoint[P, int]: ...
    @overload
    def options(self, *, deadline: float | None = None, reduce: Literal["concat"]) -> ReducedEndpoint[P, list[R]]: ...
    @names_options
    def options(
        self, *, deadline: float | None = None, partial: bool | None = None,
        results: Literal["local", "remote"] | None = None, reduce: _Reducer | None = None,
    ) -> Any:  # fmt: skip
        """The same endpoint with options for its calls; what is not given stays as it was.

        Args:
            deadline: seconds until a call is given up, as in ``with monarch.actor.deadline(seconds)``.
            partial: ``call`` waits for every rank and gives values and, in the place of those that failed, exceptions.
                Other adverbs have nothing to gather, and raise ``TypeError``.
            results: "remote" leaves what is returned where it was made; futures give a ``RemoteResult`` each, which
                may be sent on, and from which whoever has it fetches the result without a detour. "local": as usual.
            reduce: ``call`` gives one value: the "sum", "min" or "max" of numbers, element by element in tuples, lists,
                dicts and arrays of one shape; the value that is "all_equal"; the "count" of ranks that have answered,
                whose values are not sent; or "concat", the list of all. It is combined host by host, in the order of
                ranks. Futures raise ``TypeError`` for what cannot be combined, ``OverflowError`` for ints beyond 64
                bits, ``ValueError`` for what is not equal. For ``call`` only, as ``partial``; without the other two.
        """
        seconds, some, reducer = self._options
        if deadline is not None:
            seconds = check_seconds(deadline)
        if partial is not None:
            if not isinstance(partial, bool):
                raise TypeError(f"partial must be True or False, but is {partial!r}")
            some = partial
        if reduce is not None:
            if reduce not in _REDUCERS:
                raise ValueError(f"reduce must be one of {', '.join(map(repr, _REDUCERS))}, but is {reduce!r}")
            reducer = _REDUCERS[reduce]
        flags = self._flags if results is None else self._flags_for(results)
        if reducer and (some or flags & KEEP_FLAG):
            other = "partial=True" if some else "results='remote'"
            raise TypeError(f"reduce makes one value of the answers of all ranks: it does not go with {other}")
        return self._mesh._make_endpoint(self._name, flags)._with_options((seconds, some, reducer))

    def _flags_for(self, results: str) -> int:
        if results not in ("local", "remote"):
            raise ValueError(f"results must be 'local' or 'remote', but is {results!r}")
        if results == "remote" and table_of(self._mesh._class).native:
            raise NotImplementedError("results='remote' is for Python actors: those of C++ send what they return")
        return self._flags & ~KEEP_FLAG | (KEEP_FLAG if results == "remote" else 0)

    def _with_options(self, options: tuple[float, bool, int]) -> Self:
        self._options = options
        self._set_options(*options)
        _, some, reducer = options
        if some:
            self.__dict__.update(dict.fromkeys(_WITHOUT_GATHER, _refusal_of_partial(str(self))))
        if reducer:
            self.__dict__.update(dict.fromkeys((*_WITHOUT_GATHER, *_SENDS), _refusal_of_reduce(str(self))))
        return self

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Asks one rank, uniformly at random for each call (load is not considered); the future gives its answer."""
        _, chosen = self._choose_rank()
        return chosen.call_one(*args, **kwargs)

    def _choose_rank(self) -> tuple[int, Endpoint[P, R]]:
        import random  # hashes

        rank = random.randrange(len(self._mesh))
        return rank, self._mesh._choice(rank, self)._with_options(self._options)

    async def ready(self) -> None:
        """Waits until these actors, and the way to them, have room for more, and leaves the event loop to others.

        Before each ``broadcast`` or call of asyncio code that may flood, through this endpoint: one message does not
        wait after it.
        """
        import asyncio

        look = _core.RoomLook(self._mesh._ref(), str(self))
        while (seconds := look.look()) > 0:
            await asyncio.sleep(seconds)
        self._grant()

    def _gather(self, entries: list[Any]) -> Any:
        """What ``call`` gives, from the answers of all ranks in order."""
        return self._mesh._gather(entries)

    @property
    def _answers_by_port(self) -> bool:
        table = table_of(self._mesh._class)
        return not table.native and bool(table.functions[self._number][1] & EXPLICIT_PORT or self._flags & PORT_FLAG)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Asks every rank with one call; gives a future per rank, the i-th of which is the i-th answer to arrive."""
        return _Stream(self._stream(*args, **kwargs))

    def rref(self, *args: Any, **kwargs: Any) -> Any:
        """Not there yet: ``NotImplementedError``."""
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


if TYPE_CHECKING:
    _Reducer = Literal["sum", "min", "max", "count", "all_equal", "concat"]

    class ReducedEndpoint(Generic[P, R]):
        """An ``Endpoint`` with ``reduce``, as type checkers see it: its calls give one value."""

        def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
        def options(self, *, deadline: float | None = None) -> ReducedEndpoint[P, R]: ...
        async def ready(self) -> None: ...


class _Stream:
    """What :meth:`Endpoint.stream` gives. Programs from the time when that gave values say ``async for``."""

    def __init__(self, futures: list[Future[Any]]) -> None:
        self._futures = iter(futures)

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Future[Any]:
        return next(self._futures)

    def __aiter__(self) -> AsyncIterator[Any]:
        deprecated("stream() gives futures: say `for future in mesh.endpoint.stream(...): await future`")
        return self._values()

    async def _values(self) -> AsyncIterator[Any]:
        for future in self._futures:
            yield await future


def bind_arguments(ep: Endpoint[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The core's slow path: counts or keywords that the numbers of the table do not cover. Raises ``TypeError``."""
    ep._mesh._check_arguments(ep, args, kwargs)


def _refusal_of_partial(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{name} has partial=True, which is for call(): of other adverbs, each future raises what has failed. Take "
            "the endpoint without it, or .options(partial=False)"
        )

    return refuse


def _refusal_of_reduce(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{name} has reduce=, which is for call(): for other adverbs take the endpoint without it")

    return refuse


_WITHOUT_GATHER = ("call_one", "choose", "stream", "broadcast")
_SENDS = ("_send", "_send_with_port", "_choose_rank")
_ADVERBS = frozenset({"call", "call_one", "broadcast", "choose", "stream", "rref", "options"})


class PlainMethod:
    """What a method without @endpoint is on a mesh: something that says what to do, and that as_endpoint() takes."""

    def __init__(self, mesh: ActorMesh, name: str) -> None:
        self._mesh = mesh
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name not in _ADVERBS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        method = f"{self._mesh._class.__qualname__}.{self._name}"
        raise AttributeError(
            f"{method} is not an endpoint, so it has no {name}(): put @endpoint before it, or say "
            f"as_endpoint(mesh.{self._name}).{name}(...)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"Actor {self._mesh._class}.{self._name} is not annotated as an endpoint. To call it as one, add a "
            "@endpoint decorator to it, or directly wrap it in one as_endpoint(obj.method).call(...)"
        )


@overload
def as_endpoint(
    not_an_endpoint: Callable[P, Coroutine[Any, Any, R]],
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    not_an_endpoint: Callable[P, R], *, propagate: Any = None, explicit_response_port: Literal[False] = False
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    not_an_endpoint: Callable[Concatenate[Port[R], P], Any],
    *,
    propagate: Any = None,
    explicit_response_port: Literal[True],
) -> Endpoint[P, R]: ...
def as_endpoint(not_an_endpoint: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> Any:
    """Makes a method without decorator of a spawned actor callable: ``as_endpoint(mesh.method).call(...)``.

    An ``async def`` method of an actor whose endpoints are all ``def`` has no event loop to run on: ``ActorError``
    around ``TypeError``.

    Args:
        not_an_endpoint: a method of a mesh; anything else is a ``ValueError``.
        propagate: as for ``endpoint``.
        explicit_response_port: as for ``endpoint``.
    """
    if not isinstance(not_an_endpoint, PlainMethod):
        raise ValueError("expected an method of a spawned actor")
    return not_an_endpoint._mesh._make_endpoint(not_an_endpoint._name, PORT_FLAG if explicit_response_port else 0)


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
    if not isinstance(endpoint, Endpoint):
        raise TypeError(f"send() takes an endpoint of a mesh first (mesh.step), but got {endpoint!r}")
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        raise TypeError(f"send() takes the arguments as a tuple and a dict, but got {args!r} and {kwargs!r}")
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
