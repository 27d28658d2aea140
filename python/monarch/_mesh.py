"""Process and actor meshes: what a script holds in its hands. Those of hosts: ``_host_mesh``.

A mesh is a handle: it may be sliced, sent in messages and called at once, before what it names is up.
"""

from __future__ import annotations

from monarch import _context, _core, _endpoint, _pickle, _runtime, _value_mesh
from monarch._actor import Actor, spawn_info, substitute
from monarch._geometry import Point, Shape, Slice
from monarch._handles import Handle
from monarch._mesh_trait import MeshTrait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, Generic, ParamSpec, TypeVar

    from typing_extensions import Self
    from typing_extensions import TypeVar as DefaultedTypeVar

    from monarch._future import Future
    from monarch._geometry import Region
    from monarch._host_mesh import HostMesh

    P = ParamSpec("P")
    T = TypeVar("T", bound=Actor)
    A = DefaultedTypeVar("A", default=Any)
else:
    from monarch._value_mesh import Generic

    A = None

__all__ = ["ActorMesh", "ProcMesh", "this_proc"]

STOPPED_BY_CLIENT = "stopped by client"


def _whole(labels: list[str], sizes: list[int]) -> Shape:
    return Shape(labels, Slice.new_row_major(sizes))


class _Mesh(MeshTrait):
    """Labels and base ranks, and what old programs do with meshes: await them, or get() them."""

    _view: Shape
    _name: str
    _owner: Any = None  # _owned.Owned of the actor that has spawned it
    _NOT_YET: frozenset[str] = frozenset()  # names of later versions: they say so

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in self._NOT_YET:
            from monarch._not_yet import not_yet

            raise not_yet(f"{kind}.{name}")
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    @property
    def _shape(self) -> Shape:
        return self._view

    def _ends(self, end: Future[None]) -> Future[None]:
        """It has been asked to end, and ``end`` says when it has."""
        if self._owner is not None:
            self._owner.ends(self, end)
        return end

    def _members(self) -> Sequence[Any]:
        """What the base ranks stand for."""
        raise NotImplementedError

    def _key(self) -> tuple[Any, ...]:
        """What two handles have in common if they reach the same members in the same arrangement."""
        members = self._members()
        view = self._view
        return tuple(members[rank] for rank in view.ranks()), tuple(view.labels), tuple(view.ndslice.sizes)

    def __eq__(self, other: object) -> bool:
        same_kind = isinstance(other, type(self)) or isinstance(self, type(other))
        return same_kind and isinstance(other, _Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __await__(self) -> Generator[Any, None, Self]:
        _deprecated_wait(self)
        return self
        yield

    def _describe(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        return "{" + sizes + "}"


def _deprecated_wait(mesh: Any) -> None:
    from monarch._old_spellings import deprecated

    kind = type(mesh).__name__
    deprecated(f"no need to await or get() this {kind}: spawning returns it at once, and calls wait for it", 4)


def check_sizes(what: str, sizes: dict[str, int], member: str) -> None:
    """Raises unless ``sizes`` (the argument ``what``) maps names to positive sizes."""
    for label, size in sizes.items():
        if not isinstance(label, str):
            raise TypeError(f"{what} must map names to sizes, but has the name {label!r}")
        if not hasattr(size, "__index__"):
            raise TypeError(f"{what} must map names to sizes, but {label!r} has the size {size!r}")
        if size <= 0:
            raise ValueError(f"{what}[{label!r}] is {size}: a mesh needs at least one {member} along each dimension")


# ---- Processes ----


class ProcMesh(Handle, _Mesh):
    """Processes, as a mesh. Made by ``this_host().spawn_procs(...)``; actors are spawned on it.

    As a context manager, ``with`` or ``async with``, it stops at the end. Only what ``spawn_procs`` returned owns its
    processes; slices and what arrives in a message are references. Losing the last one stops nothing.
    """

    def __init__(self, nodes: list[int], shape: Shape, name: str, owned: bool = False) -> None:
        self._nodes = nodes  # by base rank
        self._view = shape
        self._name = name
        self._owned = owned
        self._stopped: list[str] = []  # shared with views: the reason, once stopped
        self._per_proc: dict[str, int] = {}  # options(): of swarms
        self._local: int = 0  # of monarch.testing.local_procs(): the number of what keeps its actors
        self._host: HostMesh | None = None  # where they are, unless that is the machine of whoever asks

    @classmethod
    def _received(
        cls, nodes: Sequence[int], labels: Sequence[str], offset: int, sizes: Sequence[int], strides: Sequence[int],
        name: str, job: str | None, local: int = 0, host: HostMesh | None = None,
    ) -> ProcMesh:  # fmt: skip
        mesh = cls(list(nodes), Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), name)
        mesh._arrived_from(job)
        mesh._local, mesh._host = local, host
        return mesh

    def _parts(self, job: str | None) -> tuple[Any, ...]:
        ndslice = self._view.ndslice
        shape = (tuple(self._view.labels), ndslice.offset, tuple(ndslice.sizes), tuple(ndslice.strides))
        parts = (tuple(self._nodes), *shape, self._name, job)
        return (*parts, self._local, self._host) if self._local or self._host is not None else parts

    def _reduce_for(self, job: str | None) -> Any:
        return ProcMesh._received, self._parts(job)

    def spawn(self, name: str, Class: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes one actor of ``Class`` in every process of the mesh.

        Returns an ``ActorMesh`` of this shape, at once; calls wait in line until it is up. An endpoint with the name of
        a mesh attribute raises ``ValueError`` here, a stopped mesh ``RuntimeError``. An exception in a constructor
        shows in the calls to that rank, as ``SupervisionError``.

        Args:
            name: for reports; need not be unique.
            Class: an ``Actor``, else ``ValueError``, or from ``monarch.cpp.load``.
            *args: go, pickled, to each constructor; wrong ones raise ``TypeError`` here.
            **kwargs: likewise.
        """
        self._check_alive()
        instance = _context.context().actor_instance
        cls, substitutes = substitute(Class, instance)
        local = self._local or instance._local
        if not local:
            mesh = self._spawn(name, cls, args, kwargs, instance, substitutes)
        else:
            from monarch import _local

            with _local.admission(local) as admit:
                mesh = self._spawn(name, cls, args, kwargs, instance, substitutes)
                admit(mesh)
        instance._own(mesh)
        return mesh

    def _spawn(self, name: str, Class: Any, args: Any, kwargs: Any, instance: Any, substitutes: Any) -> Any:
        if hasattr(Class, "_native_table"):
            return self._spawn_native(name, Class, args, kwargs)
        if "id_func" in kwargs:
            from monarch._old_spellings import constructor_arguments

            kwargs = constructor_arguments(Class, kwargs)
        check_spawn(Class, args, kwargs)
        ids, labels, sizes = self._new_actors()
        info = spawn_info(name, labels, sizes, instance, self._parts(self._job_in_message()), substitutes)
        *_, creator = info[3]
        mesh = ActorMesh(ids, _whole(labels, sizes), Class, name, creator, owned=True)
        mesh._job = self._job
        class_name = None if kwargs else _pickle.importable_name(Class)
        named = None if class_name is None else (class_name, args, None, info)
        if self._per_proc:
            firsts, swarm = _core.MeshRef(ids[:: self._per_proc_count], None, False), self._per_proc_count
        else:
            firsts, swarm = mesh._ref(), 0
        firsts.spawn(1, swarm, (Class, args, kwargs, info), named)
        return mesh

    def options(self, *, per_proc: dict[str, int] | None = None) -> ProcMesh:
        """The same processes with options for what is spawned through the result.

        Args:
            per_proc: makes *swarms*: ``{"actors": 256}`` are 256 actors in each process, along one more dimension. They
                share one thread of their process: cheap, and messages to all of them are too, but they give up thread
                affinity, and must not block one another: ``get()`` of a call to the same swarm's actors in the same
                process raises, async endpoints may await it. ``ValueError`` for labels that are taken or sizes below 1.
        """
        sizes = dict(per_proc or {})
        check_sizes("per_proc", sizes, "actor")
        overlap = [label for label in sizes if label in self._view.labels]
        if overlap:
            raise ValueError(f"per_proc labels {overlap} overlap with those of the processes: {self._view.labels}")
        view = self._new_with_shape(self._view)
        view._per_proc = sizes
        return view

    @property
    def _per_proc_count(self) -> int:
        count = 1
        for size in self._per_proc.values():
            count *= size
        return count

    def _new_actors(self) -> tuple[list[tuple[int, int]], list[str], list[int]]:
        """Identities for one new actor (or swarm) in each process, and the shape of their mesh."""
        self._introduce(self._nodes)
        count = self._per_proc_count
        nodes = [self._nodes[rank] for rank in self._view.ranks()]
        if self._local:  # all in one process
            index = _core.new_actor_index(count * len(nodes))
            ids = [(nodes[i // count], index + i) for i in range(count * len(nodes))]
        else:
            index = _core.new_actor_index(count)
            ids = [(node, index + i) for node in nodes for i in range(count)]
        return (
            ids,
            [*self._view.labels, *self._per_proc],
            [*self._view.ndslice.sizes, *(int(size) for size in self._per_proc.values())],
        )

    def _spawn_native(self, name: str, Class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            raise TypeError("C++ actors take positional arguments only")
        if self._per_proc:
            raise NotImplementedError("per_proc is for Python actors: C++ actors share threads anyway")
        ids, labels, sizes = self._new_actors()
        mesh = ActorMesh(ids, _whole(labels, sizes), Class, name, str(_context.context().actor_instance), owned=True)
        mesh._job = self._job
        value = ((Class.__name__, Class._library), name, tuple(labels), tuple(sizes), args)
        mesh._ref().spawn(0, 0, value, None)
        return mesh

    @property
    def initialized(self) -> Future[bool]:
        """True when all processes are up and their bootstrap function has run.

        Its future raises what that raised (``ActorError``), or ``SupervisionError`` if a process has ended.
        """
        self._check_alive()
        return self._set_up(True)

    def _set_up(self, done: Any) -> Future[Any]:
        """``done`` when all of these processes are up."""
        setup: Any = self.spawn("setup", _Setup)
        if setup._owner is not None:
            setup._owner.forget(setup)
        setup._gather = lambda entries: done
        return setup.setup.call()

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops the actors of these processes, then ends the processes. Starts at once; twice is fine.

        Actors handle what was sent before and have 3 s for ``__cleanup__``; what has not ended after 10 s is killed.
        Later calls raise ``SupervisionError``: ``stopped: <reason>``. Only for owners, else ``ValueError``.
        """
        if not self._owned:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        if not self._stopped:
            self._stopped.append(reason)
        if self._host is not None:
            end = self._host._stop_nodes(self._nodes, reason)
        else:
            end = _core.stop_procs(self._nodes, reason, _runtime.limit("process_exit_timeout"))
        return self._ends(end)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = 20,
        *,
        on_slow: str = "block",
    ) -> None:
        """Changes how lines of these processes reach the script's stdout and stderr, from now on.

        Without it each comes as ``[3] line`` (the rank in its mesh; ``[trainer 3]`` if several meshes print).

        Args:
            stream_to_client: the long prefix, ``[host process] [3] line``.
            aggregate_window_sec: folds equal and nearly equal lines of the mesh within so many seconds into one,
                ``[32 similar log lines] [ranks 0-31] line``.
            level: filters records of ``logging`` in the processes, never what is printed; 0 to 255.
            on_slow: what happens while the reader of the script's output is slow: with "block" writers wait, as on a
                pipe, with "drop" whole lines are dropped, counted and announced.

        When it returns, what was printed before is out. ``RuntimeError`` on a stopped mesh, and for a window without
        ``stream_to_client``; ``ValueError`` for any other level, window or ``on_slow``; ``SupervisionError`` if one of
        the processes is dead.
        """
        from monarch import _logs

        self._check_alive()
        nodes = [self._nodes[rank] for rank in self._view.ranks()]
        await _logs.set_output(nodes, stream_to_client, aggregate_window_sec, level, on_slow)
        setup: Any = self.spawn("logging", _Setup)
        await setup.set_log_level.call(level)
        setup.stop()

    def _check_alive(self) -> None:
        if self._stopped:
            raise RuntimeError("`ProcMesh` has already been stopped")

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a mesh of one; else ``NotImplementedError``."""
        if len(self._view) != 1:
            raise NotImplementedError("`ProcMesh.host_mesh` is not yet supported for non-singleton proc meshes.")
        if self._host is None:
            from monarch._host_mesh import this_host

            return this_host()
        return self._host._one(self._view.ranks()[0] * len(self._host) // len(self._nodes))

    async def __aenter__(self) -> ProcMesh:
        self._check_alive()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.stop()

    def __enter__(self) -> ProcMesh:
        self._check_alive()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop().get()

    def get(self) -> ProcMesh:
        """For programs that were written when spawning gave a future: returns the mesh itself."""
        _deprecated_wait(self)
        return self

    @property
    def region(self) -> Region:
        """Labels and base ranks of these processes."""
        return self._view.region

    def activate(self) -> Any:
        """Of the tensor engine: ``RuntimeError``, since there is none."""
        raise _no_tensor_engine()

    def rank_tensor(self, dim: str | Sequence[str]) -> Any:
        """Of the tensor engine: ``RuntimeError``, since there is none."""
        raise _no_tensor_engine()

    def rank_tensors(self) -> Any:
        """Of the tensor engine: ``RuntimeError``, since there is none."""
        raise _no_tensor_engine()

    def to_table(self) -> str:
        """Of the tensor engine: ``RuntimeError``, since there is none."""
        raise _no_tensor_engine()

    async def sync_workspace(self, *_: Any, **__: Any) -> None:
        """``NotImplementedError``: workspaces are synchronised by host."""
        raise NotImplementedError(
            "sync_workspace is not implemented for ProcMesh. Use HostMesh.sync_workspace instead."
        )

    @classmethod
    def from_host_mesh(cls, *_: Any, **__: Any) -> ProcMesh:
        """Not for users."""
        raise NotImplementedError("ProcMesh.from_host_mesh is not for users: say host_mesh.spawn_procs(...)")

    def _members(self) -> Sequence[Any]:
        # in a local mesh several members are one process
        return [(self._local, rank) for rank in range(len(self._nodes))] if self._local else self._nodes

    def __repr__(self) -> str:
        return f"ProcMesh({self._name!r}, {self._describe()})"

    def _new_with_shape(self, shape: Shape) -> ProcMesh:
        view = ProcMesh(self._nodes, shape, self._name)
        view._stopped, view._per_proc, view._local = self._stopped, self._per_proc, self._local
        view._job, view._host = self._job, self._host
        return view


def _no_tensor_engine() -> RuntimeError:
    return RuntimeError("DeviceMesh is not available because tensor_engine was not compiled (USE_TENSOR_ENGINE=0)")


def check_spawn(Class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what spawning it with these constructor arguments would raise."""
    if not (isinstance(Class, type) and issubclass(Class, Actor)):
        raise ValueError(f"{Class} must subclass monarch.service.Actor to spawn it.")
    table = _endpoint.table_of(Class)
    if table.taken is None:
        table.taken = sorted(label for label in table.endpoints if hasattr(ActorMesh, label) and label != "get")
    if table.taken:
        names = ", ".join(f"attribute={label}" for label in table.taken)
        raise ValueError(f"ActorMesh has an attribute that collides with an endpoint name: {names}")
    least, most = _endpoint._arity(Class.__init__)
    if kwargs or not least <= len(args) <= most:
        _endpoint.check_arguments(Class.__init__, args, kwargs)


class _Setup(Actor):
    @_endpoint.endpoint
    def setup(self) -> None:
        _context.context().actor_instance.stop()

    @_endpoint.endpoint
    def set_log_level(self, level: int) -> None:
        from monarch import _logs

        _logs.set_level(level)


def this_proc() -> ProcMesh:
    """The process of the current actor, or the script's own, as a mesh of one without dimensions."""
    local = _context.context().actor_instance._local
    mesh = ProcMesh([_core.node_id()], _whole([], []), "this_proc")
    mesh._local = local
    if _runtime.host_agent is not None:
        from monarch._host_mesh import this_host

        mesh._host = this_host()
    return mesh


# ---- Actors ----


class ActorMesh(Handle, _Mesh, Generic[A]):
    """Actors of one class, as a mesh, with an ``Endpoint`` per endpoint. What ``procs.spawn(...)`` returns.

    In annotations also with its class, ``ActorMesh[Trainer]``.

    It may be sent in messages, and called, sliced and passed on there; what arrives is a reference. Other attributes of
    the class raise what to do instead. Equal are views of the same actors in the same shape.
    """

    def __init__(
        self, ids: list[tuple[int, int]], shape: Shape, cls: type, name: str, creator: str, owned: bool = False
    ) -> None:
        self._ids = ids  # by base rank
        self._view = shape
        self._class = cls
        self._name = name
        self._creator = creator
        self._owned = owned
        self._base_sizes: list[int] = list(shape.ndslice.sizes)
        self._native_ref: Any = None
        self.__name__ = cls.__name__

    @classmethod
    def _received(
        cls, ids: Any, labels: Any, offset: int, sizes: Any, strides: Any, base_sizes: Any, job: str | None, *rest: Any
    ) -> Any:
        mesh = cls(ids, Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), *rest)
        mesh._base_sizes = base_sizes
        mesh._arrived_from(job)
        return mesh

    def _reduce_for(self, job: str | None) -> Any:
        n = self._view.ndslice
        parts = (self._ids, self._view.labels, n.offset, n.sizes, n.strides, self._base_sizes, job)
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

    def _gather(self, entries: list[Any]) -> Any:
        """What a call gives, from the answers of all ranks in order."""
        shape = _whole(list(self._view.labels), list(self._view.ndslice.sizes))
        return _value_mesh.ValueMesh(shape, entries)

    def _choice(self, rank: int, ep: _endpoint.Endpoint) -> _endpoint.Endpoint:
        """The endpoint of one rank, addressed as a member of this whole view."""
        chosen = self._ids[self._view.ndslice[rank]] if self._view.labels else self._ids[self._view.ranks()[0]]
        described = (tuple(self._view.labels), tuple(self._view.ndslice.sizes), rank)
        ref = _core.MeshRef([chosen], _core.encode_native(described), False)
        native = _endpoint.table_of(self._class).native
        return _endpoint.Endpoint(ref, ep._number, 1, 0, native, ep._flags, self, ep._name)

    def _make_endpoint(self, name: str, flags: int = 0) -> _endpoint.Endpoint:
        table = _endpoint.table_of(self._class)
        number = table.numbers[name]
        # With a port that the method is not declared with, the numbers of the table are wrong: (1, 0) looks closely.
        least, most = (1, 0) if flags else table.ranges[number]
        return _endpoint.Endpoint(self._ref(), number, least, most, table.native, flags, self, name)

    def __getattr__(self, name: str) -> Any:
        # Only what is not found otherwise comes here, once: endpoints are kept on the mesh.
        if name.startswith("__") or "_class" not in self.__dict__:
            raise AttributeError(name)
        table = _endpoint.table_of(self._class)
        if name in table.endpoints:
            found: Any = self._make_endpoint(name)
        elif name in table.numbers:
            found = _endpoint.PlainMethod(self, name)
        elif name == "get":
            found = self._get_self
        else:
            raise AttributeError(name)
        self.__dict__[name] = found
        return found

    def _get_self(self) -> ActorMesh:
        _deprecated_wait(self)
        return self

    def _check_arguments(self, ep: _endpoint.Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function, _ = _endpoint.table_of(self._class).functions[ep._number]
        _endpoint.check_arguments(function, args, kwargs, 2 if ep._answers_by_port else 1)

    def _describe_rank(self, rank: int) -> str:
        extent = self._view.extent
        coordinates = repr(Point(rank, extent)) if len(extent) else ""
        cls = self._class
        return f"{self._creator}.<{cls.__module__}.{cls.__qualname__} {self._name}{coordinates}>"

    @property
    def initialized(self) -> Future[None]:
        """Done when the processes of these actors are up; says nothing about constructors.

        Its future raises what their bootstrap function raised (``ActorError``), or ``SupervisionError`` if a process
        has ended.
        """
        _runtime.ensure()
        nodes = list(dict.fromkeys(self._ids[rank][0] for rank in self._view.ranks()))
        procs = ProcMesh(nodes, _whole(["procs"], [len(nodes)]), self._name)
        procs._job = self._job
        return procs._set_up(None)

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops the actors after the messages sent before, and what they own with them. Starts at once; twice is fine.

        One that is busy for ``cleanup_timeout`` (3 s) with one message, or its constructor, is left behind: its callers
        are answered as if it had ended, stderr says so, and what it runs goes on, since a thread cannot be killed.
        Later calls raise ``SupervisionError``: ``stopped: <reason>``. Only for what ``spawn`` returned: slices and
        received references raise ``NotImplementedError``.
        """
        if not self._owned:
            raise NotImplementedError("Cannot call stop on an ActorMeshRef, requires an owned ActorMesh")
        return self._ends(self._ref().stop(reason))

    def _members(self) -> Sequence[Any]:
        return self._ids

    def __repr__(self) -> str:
        return f"ActorMesh(class={self._class}, shape={self._describe()}), inner={self._name!r})"

    def _new_with_shape(self, shape: Shape) -> ActorMesh:
        view = ActorMesh(self._ids, shape, self._class, self._name, self._creator)
        view._base_sizes = self._base_sizes
        view._job = self._job
        return view
