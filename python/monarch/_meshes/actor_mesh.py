"""Actor meshes, and the actors of this package's own that every process can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.class_table import arity, check_arguments, check_hook, table_of
from monarch._actors.declarations import endpoint
from monarch._calls.endpoint import KEEP_FLAG, PORT_FLAG, Endpoint, PlainMethod
from monarch._calls.handles import Handle
from monarch._checks import check_text
from monarch._meshes.mesh import STOPPED_BY_CLIENT, Mesh, deprecated_wait, whole
from monarch._meshes.origins import SpawnOrigin, check_ranks
from monarch._meshes.spawning import SpawnInfo, spawner_info
from monarch._runtime import runtime
from monarch._runtime.context import context
from monarch._values.geometry import Extent, Point, Shape, Slice
from monarch._values.value_mesh import ValueMesh

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    from monarch._calls.future import Future

    A = DefaultedTypeVar("A", default=Any)
else:
    A = TypeVar("A")

__all__ = ["ActorMesh"]
F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


# (what an Endpoint is made of) -> one whose results stay where they are made; of a layer above.
remote_endpoint: Callable[..., Any]


def provide_remote_endpoint(make: Callable[..., Any]) -> None:
    """It has meshes itself, so its module comes after this one."""
    global remote_endpoint
    remote_endpoint = make


class _Value(Generic[R]):
    """A value that a mesh has unless its class has an endpoint of that name, which comes first."""

    def __init__(self, function: Callable[[Any], R]) -> None:
        self._function = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __get__(self, mesh: Any, _: Any = None) -> R:
        if mesh is None:
            return self  # type: ignore[return-value]
        table = table_of(mesh._class)
        if self.__name__ in table.endpoints or self.__name__ in table.numbers:
            return cast(R, mesh.__getattr__(self.__name__))
        return self._of(mesh)

    def _of(self, mesh: Any) -> R:
        return self._function(mesh)


class _Method(_Value[Any]):
    def __get__(self, mesh: Any, _: Any = None) -> Any:
        return self._function if mesh is None else super().__get__(mesh)

    def _of(self, mesh: Any) -> Any:
        return MethodType(self._function, mesh)


def _method(function: F) -> F:
    return _Method(function)  # type: ignore[return-value]


_HIDDEN = ("get", "epoch", "respawn")  # by endpoints of these names


class ActorMesh(Handle, Mesh, Generic[A]):
    """Actors of one class, as a mesh, with an ``Endpoint`` per endpoint. What ``procs.spawn(...)`` returns.

    In annotations also with its class, ``ActorMesh[Trainer]``.

    It may be sent in messages, and called, sliced and passed on there; what arrives is a reference. Other attributes of
    the class raise what to do instead. Equal are views of the same actors in the same shape.
    """

    _ELSEWHERE = {
        "options": "those of a spawn come before it: procs.options(restart=...).spawn(...); of calls: "
        "mesh.endpoint.options(...)",
    }
    _is_of_processes = False  # its calls ask processes, not actors that anybody knows

    def __init__(
        self, ids: list[tuple[int, int]], shape: Shape, cls: type, name: str, creator: str, owned: bool = False
    ) -> None:
        self._ids = ids  # by base rank
        self._view = shape
        self._class = cls
        self._name = name
        self._creator = creator
        self._owned = owned
        self._base_labels: list[str] = list(shape.labels)  # of the mesh as it was spawned
        self._base_sizes: list[int] = list(shape.ndslice.sizes)
        self._native_ref: Any = None
        self._origin: SpawnOrigin | None = None  # of what was spawned in this process
        # Where it was spawned, in the process that did so: published programs stop that by this name.
        self._proc_mesh: Any = None
        self.__name__ = cls.__name__

    @classmethod
    def _received(
        cls, ids: Any, labels: Any, offset: int, sizes: Any, strides: Any, base: Any, job: str | None, *rest: Any
    ) -> Any:
        mesh = cls(ids, Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), *rest)
        mesh._base_labels, mesh._base_sizes = base
        mesh._arrived_from(job)
        return mesh

    def _reduce_for(self, job: str | None) -> Any:
        n = self._view.ndslice
        parts = (self._ids, self._view.labels, n.offset, n.sizes, n.strides, (self._base_labels, self._base_sizes), job)
        return ActorMesh._received, (*parts, self._class, self._name, self._creator)

    def _ref(self) -> Any:
        """The core's side of this view."""
        if self._native_ref is None:
            ndslice = self._view.ndslice
            ids = self._ids
            self._introduce(node for node, _ in ids)
            if len(self._view) != len(ids) or list(ndslice.sizes) != self._base_sizes:
                chosen = [ids[rank] for rank in self._view.ranks()]
                scalar = not self._view.labels
                view = None if scalar else _core.encode_native((tuple(self._view.labels), tuple(ndslice.sizes)))
                self._native_ref = _core.MeshRef(chosen, view, scalar)
            else:
                self._native_ref = _core.MeshRef(ids, None, False)
        return self._native_ref

    def _supervise(self) -> None:
        """The actor that runs is told of failures. Before the spawn is sent."""
        view = self._view
        labels, sizes = tuple(view.labels), tuple(view.ndslice.sizes)
        class_name = getattr(table_of(self._class), "class_name", self._class.__name__)
        self._supervised = _core.own(self._name, class_name, self._creator, labels, sizes, self._ref())

    def _gather(self, entries: list[Any]) -> Any:
        """What a call gives, from the answers of all ranks in order."""
        shape = whole(list(self._view.labels), list(self._view.ndslice.sizes))
        return ValueMesh(shape, entries)

    def _choice(self, rank: int, ep: Endpoint) -> Endpoint:
        """The endpoint of one rank, addressed as a member of this whole view."""
        chosen = self._ids[self._view.ndslice[rank]] if self._view.labels else self._ids[self._view.ranks()[0]]
        described = (tuple(self._view.labels), tuple(self._view.ndslice.sizes), rank)
        ref = _core.MeshRef([chosen], _core.encode_native(described), False)
        native = table_of(self._class).native
        one: Endpoint[Any, Any] = type(ep)(ref, ep._number, 1, 0, native, ep._flags, self, ep._name)
        one._first_rank = rank
        return one

    def _make_endpoint(self, name: str, flags: int = 0) -> Endpoint:
        table = table_of(self._class)
        number = table.numbers[name]
        # With a port that the method is not declared with, the numbers of the table are wrong: (1, 0) looks closely.
        least, most = (1, 0) if flags & PORT_FLAG else table.ranges[number]
        make = remote_endpoint if flags & KEEP_FLAG else Endpoint
        return make(self._ref(), number, least, most, table.native, flags, self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *table_of(self._class).endpoints})

    def __getattr__(self, name: str) -> Any:
        # Only what is not found otherwise comes here, once: endpoints are kept on the mesh.
        if name.startswith("__") or "_class" not in self.__dict__:
            raise AttributeError(name)
        table = table_of(self._class)
        if name in table.endpoints:
            found: Any = self._make_endpoint(name)
        elif name in table.numbers:
            found = PlainMethod(self, name)
        elif name == "get":
            found = self._get_self
        else:
            known = ", ".join(sorted(table.endpoints)) or "none"
            where = f" ({self._ELSEWHERE[name]})" if name in self._ELSEWHERE else ""
            raise AttributeError(
                f"{self._class.__qualname__} has no endpoint or method {name!r}; endpoints: {known}{where}"
            )
        self.__dict__[name] = found
        return found

    @_Value
    def epoch(self) -> int:
        """How often some of the whole mesh has been made anew, as far as is known here.

        An endpoint of that name hides it.
        ``context().epoch`` is what it was when a message was sent: the same for all ranks of a call.
        """
        return int(_core.epoch_of(self._ids[0][1]))

    @_method
    def respawn(self, ranks: int | Sequence[int] | None = None) -> Future[None]:
        """Makes actors that have failed anew, in their processes. An endpoint of that name hides it.

        Every handle and slice, wherever it is, reaches the new ones. Their constructors are called with the same
        arguments. Starts at once; the future is done when their processes have taken it up, and says nothing about
        constructors.

        Args:
            ranks: which, of the whole mesh; all that have ended, if none are given.

        Raises:
            ValueError: a rank lives, or there is none of that number.
            RuntimeError: a process has ended (``procs.respawn()`` brings it back with its actors), the constructor
                arguments had more than 1 MiB and there is no restart policy, or the mesh was stopped or is not what
                ``spawn`` returned in this process.
        """
        origin = self._origin
        if not self._owned or origin is None:
            raise RuntimeError("only what spawn() returned, where it was called, can respawn actors")
        ended = _core.ended_ranks(self._supervised) if self._supervised else None
        if ended is None:
            raise RuntimeError(f"{self._name!r} has been stopped, or has ended as it wished")
        wanted = check_ranks(ranks, len(self._ids), ended, self._name)
        if not wanted:
            return _core.completed_future(None)
        nodes = origin.nodes_of(wanted)
        gone = [rank for rank, node in zip(wanted, nodes) if _core.down_reason(node) is not None]
        if gone:
            raise RuntimeError(
                f"the process{'es' * (len(gone) > 1)} of rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))} of "
                f"{self._name!r} {'have' if len(gone) > 1 else 'has'} ended: procs.respawn() starts others in their "
                "place, with their actors"
            )
        if origin.record is None:
            raise RuntimeError(
                f"the constructor arguments of {self._name!r} have more than {origin.KEPT_MAX >> 20} MiB, and are kept "
                "only with a restart policy: procs.options(restart=...).spawn(...)"
            )
        origin.respawn(wanted)
        return when_up(self, nodes, "respawn", None)

    def _nodes_in_view(self) -> list[int]:
        return [self._ids[rank][0] for rank in self._view.ranks()]

    def _get_self(self) -> ActorMesh:
        deprecated_wait(self)
        return self

    def _check_arguments(self, ep: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function, _ = table_of(self._class).functions[ep._number]
        try:
            check_arguments(function, args, kwargs, 2 if ep._answers_by_port else 1)
        except TypeError as error:
            raise TypeError(f"{ep}(): {error}") from None

    def _place_of(self, rank: int) -> tuple[Point, str]:
        """Where a rank is in this view, and how to begin a sentence about it."""
        place = self._point_in_whole(rank)
        return self._point_of(rank), f"{f'rank {place!r} of ' if len(place) else ''}{self._name!r} "

    def _point_of(self, rank: int) -> Point:
        return Point(rank, self._view.extent)

    def _point_in_whole(self, rank: int) -> Point:
        """Where a rank is: of a part of a mesh, in the mesh as it was spawned, which is how people know it."""
        if len(self._view) == len(self._ids):
            return self._point_of(rank)
        number = self._view.ndslice[rank] if self._view.labels else self._view.ranks()[0]
        return Point(number, Extent(self._base_labels, self._base_sizes))

    def _describe_rank(self, rank: int) -> str:
        point = self._point_in_whole(rank)
        coordinates = repr(point) if len(point) else ""
        cls = self._class
        return f"{self._creator}.<{cls.__module__}.{cls.__qualname__} {self._name}{coordinates}>"

    @property
    def initialized(self) -> Future[None]:
        """Done when the processes of these actors are up; says nothing about constructors.

        Its future raises what their bootstrap function raised (``ActorError``), or ``SupervisionError`` if a process
        has ended.
        """
        runtime.ensure()
        return when_up(self, self._nodes_in_view(), "initialized", None)

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops the actors after the messages sent before, and what they own with them. Starts at once; twice is fine.

        One that is busy for ``cleanup_timeout`` (3 s) with one message, or its constructor, is left behind: its callers
        are answered as if it had ended, stderr says so, and what it runs goes on, since a thread cannot be killed.
        Later calls raise ``SupervisionError``: ``stopped: <reason>``. Only for what ``spawn`` returned: slices and
        received references raise ``NotImplementedError``.
        """
        check_text("the reason for stopping", reason)
        if not self._owned:
            raise NotImplementedError("Cannot call stop on an ActorMeshRef, requires an owned ActorMesh")
        return self._ends(self._ref().stop(reason))

    def _members(self) -> Sequence[Any]:
        return self._ids

    def __repr__(self) -> str:
        return f"ActorMesh(class={self._class}, shape={self._describe()}), inner={self._name!r})"

    def _new_with_shape(self, shape: Shape) -> ActorMesh:
        view = ActorMesh(self._ids, shape, self._class, self._name, self._creator)
        view._base_labels, view._base_sizes = self._base_labels, self._base_sizes
        view._job = self._job
        return view


def check_spawn(Class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what spawning it with these constructor arguments would raise."""
    if isinstance(Class, Actor):
        cls = type(Class).__qualname__
        raise ValueError(
            f"got an instance of {cls}: pass the class, and its arguments after it: spawn(name, {cls}, ...)"
        )
    if not (isinstance(Class, type) and issubclass(Class, Actor)):
        raise ValueError(f"{Class} must subclass monarch.service.Actor to spawn it.")
    if missing := sorted(Class.__abstractmethods__):
        methods = f"method{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise TypeError(f"Can't instantiate abstract class {Class.__name__} with abstract {methods}")
    table = table_of(Class)
    if table.taken is None:
        check_hook(Class)
        table.taken = sorted(label for label in table.endpoints if hasattr(ActorMesh, label) and label not in _HIDDEN)
    if table.taken:
        names = ", ".join(f"attribute={label}" for label in table.taken)
        raise ValueError(f"ActorMesh has an attribute that collides with an endpoint name: {names}")
    least, most = arity(Class.__init__)
    if kwargs or not least <= len(args) <= most:
        try:
            check_arguments(Class.__init__, args, kwargs)
        except TypeError as error:
            options = ", ".join(f"{name}=..." for name in ("restart", "per_proc") if name in kwargs)
            where = f" (options come before: procs.options({options}).spawn(...))" if options else ""
            raise TypeError(f"{Class.__qualname__}(): {error}{where}") from None


# ---- Actors of this package's own ----


class SetUp(Actor):
    """Answers when its process is up, and adjusts it."""

    @endpoint
    def setup(self) -> None:
        context().actor_instance.stop()

    @endpoint
    def set_log_level(self, level: int) -> None:
        from monarch._runtime import log_prefix  # logging

        log_prefix.set_level(level)


class SetUpMesh(ActorMesh):
    """Of ``SetUp``. What it tells, it tells of the mesh ``of``, whose processes these are: nobody knows this one."""

    _is_of_processes = True

    def __init__(self, of: Any, ids: list[tuple[int, int]], what: str, creator: str) -> None:
        super().__init__(ids, whole(["procs"], [len(ids)]), SetUp, of._name, creator, owned=True)
        self._of = of
        self._what = what  # of the mesh's methods, on whose behalf it is asked
        self._job = of._job

    def _make_endpoint(self, name: str, flags: int = 0) -> Endpoint:
        ep = super()._make_endpoint(name, flags)
        ep._call_it(self._what)
        return ep

    def _point_of(self, rank: int) -> Point:
        node, *nodes = _core.latest([self._ids[rank][0], *self._of._nodes_in_view()])
        return Point(nodes.index(node), self._of.extent)


def spawn_set_up(of: Any, nodes: list[int], what: str) -> Any:
    """One in each of these processes. Nobody owns it: whoever spawns it ends it, or it ends with its process."""
    nodes = list(dict.fromkeys(nodes))
    instance = context().actor_instance
    index = _core.new_actor_index(1)
    mesh = SetUpMesh(of, [(node, index) for node in nodes], what, str(instance))
    info = tuple(SpawnInfo("setup", ("procs",), (len(nodes),), spawner_info(instance), (), ()))
    mesh._ref().spawn(1, 0, (SetUp, (), {}, info), ((SetUp.__module__, SetUp.__qualname__), (), None, info))
    return mesh


def when_up(of: Any, nodes: list[int], what: str, outcome: Any) -> Future[Any]:
    """``outcome``, when these processes of a mesh are up and their bootstrap functions have run; or what those raised.

    ``what``: the name under which its caller is told of it.
    """
    mesh = spawn_set_up(of, nodes, what)
    mesh._gather = lambda entries: outcome
    return mesh.setup.call()
