"""Host, process and actor meshes: what a script holds in its hands.

A mesh is a handle: it may be sliced, sent in messages and called at once, before what it names is up.
"""

from __future__ import annotations

from monarch import _context, _core, _endpoint, _runtime
from monarch._actor import Actor, spawn_info
from monarch._geometry import Point, Shape, Slice
from monarch._mesh_trait import MeshTrait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from typing_extensions import Self

    from monarch._future import Future

    T = TypeVar("T")

__all__ = ["ActorMesh", "HostMesh", "ProcMesh", "local_proc_mesh", "proc_mesh", "this_host", "this_proc"]

STOPPED_BY_CLIENT = "stopped by client"


def _whole(labels: list[str], sizes: list[int]) -> Shape:
    return Shape(labels, Slice.new_row_major(sizes))


class _Mesh(MeshTrait):
    """Labels and base ranks, and what old programs do with meshes: await them, or get() them."""

    _view: Shape
    _name: str
    _NOT_YET: frozenset[str] = frozenset()  # names of later versions: they say so

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in self._NOT_YET:
            raise NotImplementedError(f"{kind}.{name} is not there yet; README.md lists what is.")
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    @property
    def _shape(self) -> Shape:
        return self._view

    def __await__(self) -> Generator[Any, None, Self]:
        _deprecated_wait(self)
        return self
        yield

    def _describe(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        return "{" + sizes + "}"


def _deprecated_wait(mesh: Any) -> None:
    import warnings

    warnings.warn(
        f"no need to await or get() this {type(mesh).__name__}: spawning returns it at once, and calls wait for it",
        DeprecationWarning,
        stacklevel=3,
    )


# ---- Hosts ----


class HostMesh(_Mesh):
    """Machines that processes can be spawned on; here, this one: :func:`this_host`."""

    _NOT_YET = frozenset({"is_fake_in_process", "stream_logs", "sync_workspace", "with_python_executable"})

    def __init__(self) -> None:
        self._view = _whole([], [])
        self._name = "host"
        self._spawned: list[int] = []
        self._ended = False

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: Any = None,
    ) -> ProcMesh:
        """New processes, ``per_host`` says how many along which dimensions (``{"gpus": 8}``); none: one process.

        Returns at once. ``bootstrap`` runs once in every process before any actor is made there; if it raises, every
        use of the mesh raises ``ActorError``. Sizes must be positive: ``ValueError``.
        """
        if proc_bind is not None or bootstrap_command is not None:
            raise NotImplementedError("proc_bind and bootstrap_command are not there yet; README.md lists what is.")
        return _spawn_procs(self, per_host or {}, bootstrap, name, {})

    def stop(self) -> Future[None]:
        """Stops the processes that were spawned through this object, which is spent afterwards. Starts at once."""
        self._ended = True
        return _core.stop_procs(self._spawned, STOPPED_BY_CLIENT, 10.0)

    def shutdown(self) -> Future[None]:
        """As :meth:`stop`: on the script's own host there is no worker program to end."""
        return self.stop()

    def _check_alive(self) -> None:
        if self._ended:
            raise RuntimeError("HostMesh has already been shut down")

    async def __aenter__(self) -> HostMesh:
        self._check_alive()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.shutdown()

    def __enter__(self) -> HostMesh:
        self._check_alive()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown().get()

    @property
    def initialized(self) -> Future[bool]:
        """Done when the host is there."""
        _runtime.ensure()
        return _core.finished_future("")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostMesh) and self._view == other._view

    def __hash__(self) -> int:
        return hash(("HostMesh", self._view))

    def __reduce__(self) -> Any:
        return this_host, ()

    def __repr__(self) -> str:
        return f"HostMesh({self._describe()})"

    def _new_with_shape(self, shape: Shape) -> HostMesh:
        view = HostMesh()
        view._view, view._name, view._spawned = shape, self._name, self._spawned
        return view


def this_host() -> HostMesh:
    """The host of the current actor, or of the script. Starts the runtime."""
    _runtime.ensure()
    return HostMesh()


def _spawn_procs(
    host: HostMesh, per_host: dict[str, int], bootstrap: Any, name: str | None, env: dict[str, str]
) -> ProcMesh:
    _runtime.ensure()
    host._check_alive()
    overlap = [label for label in per_host if label in host._view.labels]
    if overlap:
        raise ValueError(f"per_host labels {overlap} overlap with host labels {tuple(host._view.labels)}")
    for label, size in per_host.items():
        if not isinstance(label, str):
            raise TypeError(f"per_host must map names to sizes, but has the name {label!r}")
        if not hasattr(size, "__index__"):
            raise TypeError(f"per_host must map names to sizes, but {label!r} has the size {size!r}")
        if size <= 0:
            raise ValueError(f"per_host[{label!r}] is {size}: a mesh needs at least one process along each dimension")
    labels = [*host._view.labels, *per_host]
    sizes = [*host._view.ndslice.sizes, *(int(size) for size in per_host.values())]
    shape = _whole(labels, sizes)
    mesh_name = name or "procs"
    setup = None
    if bootstrap is not None:
        import cloudpickle

        setup = cloudpickle.dumps(bootstrap)
    extent = shape.extent
    from monarch import _logs

    output = _logs.output_settings(mesh_name)
    launches = []
    for rank in range(len(shape)):
        where = f"rank {Point(rank, extent)!r} of {mesh_name!r}" if labels else repr(mesh_name)
        launch = _runtime.launch(where, setup, env, (labels, sizes, mesh_name))
        launches.append({**launch, **output(rank if labels else -1)})
    nodes = _core.spawn_procs(launches)
    host._spawned += nodes
    return ProcMesh(nodes, shape, mesh_name, owned=True)


# ---- Processes ----


class ProcMesh(_Mesh):
    """Processes, as a mesh. Made by ``this_host().spawn_procs(...)``; actors are spawned on it."""

    _NOT_YET = frozenset({"activate", "from_host_mesh", "rank_tensor", "rank_tensors", "sync_workspace", "to_table"})

    def __init__(self, nodes: list[int], shape: Shape, name: str, owned: bool = False) -> None:
        self._nodes = nodes  # by base rank
        self._view = shape
        self._name = name
        self._owned = owned
        self._stopped: list[str] = []  # shared with views: the reason, once stopped

    @classmethod
    def _received(
        cls, nodes: list[int], labels: list[str], offset: int, sizes: list[int], strides: list[int], name: str
    ):
        return cls(nodes, Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), name)

    def _parts(self) -> tuple[Any, ...]:
        ndslice = self._view.ndslice
        return self._nodes, self._view.labels, ndslice.offset, ndslice.sizes, ndslice.strides, self._name

    def __reduce__(self) -> Any:
        return ProcMesh._received, self._parts()

    def spawn(self, name: str, Class: type[T], *args: Any, **kwargs: Any) -> T:
        """One actor of ``Class`` in every process of the mesh; the arguments go to their constructors.

        Returns at once. An exception in a constructor shows in the calls to that rank, as ``SupervisionError``.
        """
        self._check_alive()
        if hasattr(Class, "_native_table"):
            return self._spawn_native(name, Class, args, kwargs)
        if not (isinstance(Class, type) and issubclass(Class, Actor)):
            raise ValueError(f"{Class} must subclass monarch.service.Actor to spawn it.")
        table = _endpoint.table_of(Class)
        taken = sorted(label for label in table.endpoints if hasattr(ActorMesh, label) and label != "get")
        if taken:
            names = ", ".join(f"attribute={label}" for label in taken)
            raise ValueError(f"ActorMesh has an attribute that collides with an endpoint name: {names}")
        least, most = _endpoint._arity(Class.__init__)
        if kwargs or not least <= len(args) <= most:
            _endpoint.check_arguments(Class.__init__, args, kwargs)
        ids, labels, sizes = self._new_actors()
        instance = _context.context().actor_instance
        info = spawn_info(name, labels, sizes, instance, self._parts(), ids[0][1])
        mesh = ActorMesh(ids, _whole(labels, sizes), Class, name, str(instance), owned=True)
        mesh._constructed = mesh._ref().spawn(1, (Class, args, kwargs, info))
        return mesh  # type: ignore[return-value]

    def _new_actors(self) -> tuple[list[tuple[int, int]], list[str], list[int]]:
        """Identities for one new actor in each process, and the shape of their mesh."""
        index = _core.new_actor_index()
        ids = [(self._nodes[rank], index) for rank in self._view.ranks()]
        return ids, list(self._view.labels), list(self._view.ndslice.sizes)

    def _spawn_native(self, name: str, Class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            raise TypeError("C++ actors take positional arguments only")
        ids, labels, sizes = self._new_actors()
        mesh = ActorMesh(ids, _whole(labels, sizes), Class, name, str(_context.context().actor_instance), owned=True)
        value = ((Class.__name__, Class._library), name, tuple(labels), tuple(sizes), args)
        mesh._constructed = mesh._ref().spawn(0, value)
        return mesh

    @property
    def initialized(self) -> Future[bool]:
        """Done when all processes are up and their bootstrap function has run; raises what that raised."""
        self._check_alive()
        return self.spawn("setup", _Setup).setup.call()

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops the actors of these processes, then ends the processes. Starts at once; twice is fine."""
        if not self._owned:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        if not self._stopped:
            self._stopped.append(reason)
        return _core.stop_procs(self._nodes, reason, 10.0)

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
        ``stream_to_client`` gives the long prefix, ``[host process] [3] line``. ``aggregate_window_sec`` folds equal
        and nearly equal lines of the mesh within so many seconds into one, ``[32 similar log lines] [ranks 0-31]
        line``. ``level`` (0 to 255; ``logging.INFO``) filters records of ``logging`` in the processes, never what is
        printed. ``on_slow`` says what happens while the reader of the script's output is slow: with "block"
        writers wait, as on a pipe, with "drop" whole lines are dropped, counted and announced.

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
        if len(self._view) != 1:
            raise NotImplementedError("`ProcMesh.host_mesh` is not yet supported for non-singleton proc meshes.")
        return this_host()

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcMesh) and self._nodes == other._nodes and self._view == other._view

    def __hash__(self) -> int:
        return hash((tuple(self._nodes), self._view))

    def __repr__(self) -> str:
        return f"ProcMesh({self._name!r}, {self._describe()})"

    def _new_with_shape(self, shape: Shape) -> ProcMesh:
        view = ProcMesh(self._nodes, shape, self._name)
        view._stopped = self._stopped
        return view


class _Setup(Actor):
    @_endpoint.endpoint
    def setup(self) -> bool:
        return True

    @_endpoint.endpoint
    def set_log_level(self, level: int) -> None:
        from monarch import _logs

        _logs.set_level(level)


def this_proc() -> ProcMesh:
    """The process of the current actor, or the script's own, as a mesh of one without dimensions."""
    _runtime.ensure()
    return ProcMesh([_core.node_id()], _whole([], []), "this_proc")


# ---- Actors ----


class ActorMesh(_Mesh):
    """Actors of one class, as a mesh: one attribute per endpoint. What ``procs.spawn(...)`` returns."""

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
        self._constructed: Any = None
        self.__name__ = cls.__name__

    @classmethod
    def _received(
        cls, ids: Any, labels: Any, offset: int, sizes: Any, strides: Any, base_sizes: Any, *rest: Any
    ) -> Any:
        mesh = cls(ids, Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), *rest)
        mesh._base_sizes = base_sizes
        return mesh

    def __reduce__(self) -> Any:
        n = self._view.ndslice
        parts = (self._ids, self._view.labels, n.offset, n.sizes, n.strides, self._base_sizes)
        return ActorMesh._received, (*parts, self._class, self._name, self._creator)

    def _ref(self) -> Any:
        """The core's side of this view."""
        if self._native_ref is None:
            ndslice = self._view.ndslice
            ids = self._ids
            if len(self._view) != len(ids) or list(ndslice.sizes) != self._base_sizes:
                chosen = [ids[rank] for rank in self._view.ranks()]
                scalar = not self._view.labels
                view = None if scalar else _core.encode_native((tuple(self._view.labels), tuple(ndslice.sizes)))
                self._native_ref = _core.MeshRef(chosen, view, scalar)
            else:
                self._native_ref = _core.MeshRef(ids, None, False)
        return self._native_ref

    def _result_shape(self) -> Shape:
        return _whole(list(self._view.labels), list(self._view.ndslice.sizes))

    def _choice(self, rank: int, name: str) -> _endpoint.Endpoint:
        """The endpoint of one rank, addressed as a member of this whole view."""
        chosen = self._ids[self._view.ndslice[rank]] if self._view.labels else self._ids[self._view.ranks()[0]]
        described = (tuple(self._view.labels), tuple(self._view.ndslice.sizes), rank)
        ref = _core.MeshRef([chosen], _core.encode_native(described), False)
        table = _endpoint.table_of(self._class)
        return _endpoint.Endpoint(ref, table.numbers[name], 1, 0, table.native, self, name)

    def _make_endpoint(self, name: str) -> _endpoint.Endpoint:
        table = _endpoint.table_of(self._class)
        number = table.numbers[name]
        least, most = table.ranges[number]
        return _endpoint.Endpoint(self._ref(), number, least, most, table.native, self, name)

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
        function, kind = _endpoint.table_of(self._class).functions[ep._number]
        _endpoint.check_arguments(function, args, kwargs, 2 if kind & _endpoint.EXPLICIT_PORT else 1)

    def _describe_rank(self, rank: int) -> str:
        extent = self._view.extent
        coordinates = repr(Point(rank, extent)) if len(extent) else ""
        cls = self._class
        return f"{self._creator}.<{cls.__module__}.{cls.__qualname__} {self._name}{coordinates}>"

    @property
    def initialized(self) -> Future[None]:
        """Done when the mesh exists; says nothing about constructors."""
        return _core.finished_future("")

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops the actors after the messages sent before; later calls raise ``SupervisionError``. Starts at once."""
        if not self._owned:
            raise NotImplementedError("Cannot call stop on an ActorMeshRef, requires an owned ActorMesh")
        return self._ref().stop(reason)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorMesh) and self._ids == other._ids and self._view == other._view

    def __hash__(self) -> int:
        return hash((tuple(self._ids), self._view))

    def __repr__(self) -> str:
        return f"ActorMesh(class={self._class}, shape={self._describe()}), inner={self._name!r})"

    def _new_with_shape(self, shape: Shape) -> ActorMesh:
        view = ActorMesh(self._ids, shape, self._class, self._name, self._creator)
        view._base_sizes = self._base_sizes
        return view


# ---- Old spellings ----


def _gpu_count() -> int:
    import glob
    import os

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _deprecated_spelling(old: str) -> None:
    import warnings

    warnings.warn(
        f"{old}() is an old spelling of this_host().spawn_procs(per_host={{...}})", DeprecationWarning, stacklevel=3
    )


def proc_mesh(
    *,
    gpus: int | None = None,
    hosts: int = 1,
    env: dict[str, str] | None = None,
    setup: Callable[[], None] | None = None,
) -> ProcMesh:
    """Old spelling of ``this_host().spawn_procs(per_host={"hosts": hosts, "gpus": gpus}, bootstrap=setup)``."""
    _deprecated_spelling("proc_mesh")
    sizes = {"hosts": hosts, "gpus": _gpu_count() if gpus is None else gpus}
    return _spawn_procs(this_host(), sizes, setup, None, env or {})


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """Old spelling of ``this_host().spawn_procs(...)``."""
    _deprecated_spelling("local_proc_mesh")
    return _spawn_procs(this_host(), {"hosts": hosts, "gpus": _gpu_count() if gpus is None else gpus}, None, None, {})
