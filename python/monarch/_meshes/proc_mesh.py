"""Process meshes. A mesh is a handle: it may be sliced, sent and used at once, before what it names is up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch import _core
from monarch._actors.actor import Actor
from monarch._calls.handles import Handle
from monarch._calls.pickling import importable_name
from monarch._checks import check_sizes, check_text, names_options
from monarch._meshes import block_end, inhabitants
from monarch._meshes.actor_mesh import ActorMesh, check_spawn, spawn_set_up, when_up
from monarch._meshes.agents import await_started, stopped_on_hosts
from monarch._meshes.mesh import STOPPED_BY_CLIENT, Mesh, deprecated_wait, whole
from monarch._meshes.origins import ProcsOrigin, Restart, SpawnOrigin, check_ranks, watch_over
from monarch._meshes.spawning import ProcMeshParts, SpawnInfo, constructor_arguments, spawner_info, substitute
from monarch._processes import output
from monarch._runtime import runtime
from monarch._runtime.context import context
from monarch._runtime.here import here
from monarch._values.geometry import Region, Shape, Slice
from monarch._values.ranks import ranks_text

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.host_mesh import HostMesh

__all__ = ["ProcMesh", "this_proc"]

P = ParamSpec("P")
T = TypeVar("T", bound=Actor)

_this_host: Callable[[], HostMesh] | None = None


def provide_this_host(this_host: Callable[[], HostMesh]) -> None:
    """Hosts make meshes of processes, so their module comes after this one."""
    global _this_host
    _this_host = this_host


def _host_of_this_process() -> HostMesh:
    assert _this_host is not None
    return _this_host()


class ProcMesh(Handle, Mesh):
    """Processes, as a mesh. Made by ``this_host().spawn_procs(...)``; actors are spawned on it.

    As a context manager, ``with`` or ``async with``, it stops at the end. If that takes long, a line on stderr says
    whom it waits for; Ctrl-C (or a cancellation) meanwhile kills the processes at once. Only what ``spawn_procs``
    returned owns its processes; slices and what arrives in a message are references. Losing the last one stops nothing.
    """

    _at_interrupt = "kills them at once"

    def __init__(self, nodes: list[int], shape: Shape, name: str, owned: bool = False) -> None:
        if not isinstance(shape, Shape):
            raise TypeError("programs do not make a ProcMesh themselves: say this_host().spawn_procs(per_host={...})")
        self._nodes = nodes  # by base rank
        self._view = shape
        self._name = name
        self._owned = owned
        self._stopped: list[str] = []  # shared with views: the reason, once stopped
        self._per_proc: dict[str, int] = {}  # options(): of swarms
        self._watched = True  # what becomes of what is spawned here is told to its owner
        self._local: int = 0  # of monarch.testing.local_procs(): the number of what keeps its actors
        self._host: HostMesh | None = None  # where they are, unless that is the machine of whoever asks
        self._origin: ProcsOrigin | None = None  # of processes that were started here
        self._restart: Restart | None = None  # options(): of what is spawned

    @classmethod
    def _received(cls, *parts: Any) -> ProcMesh:
        of = ProcMeshParts(*parts)
        ranks = Slice(offset=of.offset, sizes=of.sizes, strides=of.strides)
        mesh = cls(list(of.nodes), Shape(of.labels, ranks), of.name)
        mesh._arrived_from(of.job)
        mesh._local, mesh._host = of.local, of.host
        return mesh

    def _parts(self, job: str | None) -> tuple[Any, ...]:
        """``ProcMeshParts``, as a plain tuple."""
        n = self._view.ndslice
        shape = (tuple(self._view.labels), n.offset, tuple(n.sizes), tuple(n.strides))
        return (tuple(self._nodes), *shape, self._name, job, self._local, self._host)

    def _reduce_for(self, job: str | None) -> Any:
        await_started(self._nodes)
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
        check_text("the name of an actor mesh, the first argument of spawn(name, Class, ...),", name)
        self._check_alive()
        instance = context().actor_instance
        cls, substitutes = substitute(Class, instance)
        local = self._local or instance._local
        if not local:
            mesh = self._spawn(name, cls, args, kwargs, instance, substitutes)
        else:
            with inhabitants.admission(local) as here:
                mesh = self._spawn(name, cls, args, kwargs, instance, substitutes)
                here.actors.append(mesh)
        instance._own(mesh)
        return mesh

    def _spawn(self, name: str, Class: Any, args: Any, kwargs: Any, instance: Any, substitutes: Any) -> Any:
        if hasattr(Class, "_native_table"):
            return self._spawn_native(name, Class, args, kwargs)
        if "id_func" in kwargs:
            kwargs = constructor_arguments(Class, kwargs)
        check_spawn(Class, args, kwargs)
        ids, labels, sizes = self._new_actors()
        procs = self._parts(self._job_in_message())
        info = tuple(SpawnInfo(name, tuple(labels), tuple(sizes), spawner_info(instance), procs, substitutes))
        mesh = ActorMesh(ids, whole(labels, sizes), Class, name, str(instance), owned=True)
        mesh._job = self._job
        mesh._proc_mesh = self
        class_name = None if kwargs else importable_name(Class)
        named = None if class_name is None else (class_name, args, None, info)
        if self._per_proc:
            firsts, swarm = _core.MeshRef(ids[:: self._per_proc_count], None, False), self._per_proc_count
        else:
            firsts, swarm = mesh._ref(), 0
        if self._watched:
            mesh._supervise()
        origin = self._new_origin(mesh, swarm)
        try:
            origin.record = firsts.spawn(1, swarm, (Class, args, kwargs, info), named, self._kept_max())
        except BaseException:
            mesh._end_supervision()
            raise
        return mesh

    def _kept_max(self) -> int:
        """How many bytes of constructor arguments are kept, so that what has ended can be made anew."""
        return SpawnOrigin.KEPT_MAX if self._restart is None else sys.maxsize

    def _new_origin(self, mesh: ActorMesh, per_process: int) -> SpawnOrigin:
        """Before the spawn is sent, which its record is then made of."""
        origin = SpawnOrigin(mesh._name, mesh._ids, mesh._supervised, per_process, self._restart)
        mesh._origin = origin
        if self._origin is not None:
            self._origin.add(origin)
        if self._restart is not None:
            watch_over(origin)
            if self._origin is None and any(node != _core.node_id() for node in self._nodes):
                _core.log_line(
                    f"the restart policy of {mesh._name!r} counts for its actors, not for their processes: those are "
                    "not this process's to start, and what dies with one of them is a failure"
                )
        return origin

    @names_options
    def options(self, *, per_proc: dict[str, int] | None = None, restart: Restart | None = None) -> ProcMesh:
        """The same processes with options for what is spawned through the result; what is not given is not in force.

        Args:
            restart: a policy that makes ranks anew which fail: ``monarch.actor.Restart``.
            per_proc: makes *swarms*: ``{"actors": 256}`` are 256 actors in each process, along one more dimension. They
                share one thread of their process: cheap, and messages to all of them are too, but they give up thread
                affinity, and must not block one another: ``get()`` of a call to the same swarm's actors in the same
                process raises, async endpoints may await it. ``ValueError`` for labels that are taken or sizes below 1.
        """
        if restart is not None and not isinstance(restart, Restart):
            raise TypeError(f"restart must be a monarch.actor.Restart, but is {restart!r}")
        check_sizes("per_proc", {} if per_proc is None else per_proc, "actor")
        sizes = dict(per_proc or {})
        overlap = [label for label in sizes if label in self._view.labels]
        if overlap:
            raise ValueError(f"per_proc labels {overlap} overlap with those of the processes: {self._view.labels}")
        view = self._new_with_shape(self._view)
        view._per_proc = sizes
        view._restart = restart
        return view

    def respawn(self, ranks: int | Sequence[int] | None = None) -> Future[None]:
        """Starts processes in the place of those that have ended, with all actors that this one has spawned on them.

        Every handle and slice of both, wherever it is, reaches the new ones; the other ranks are not touched. Starts at
        once; the future is done when the processes are up, and raises what their bootstrap function raised.

        Args:
            ranks: which, of the mesh; all that have ended, if none are given.

        Raises:
            ValueError: a rank lives, or there is none of that number.
            RuntimeError: the mesh has been stopped, or is not what ``spawn_procs`` returned in this process.

        Actors whose constructor arguments had more than 1 MiB come back only with a restart policy; what other
        processes have spawned there, they respawn themselves. Calls to what does not come back raise
        ``SupervisionError``.
        """
        self._check_alive()
        if not self._owned or self._origin is None:
            raise RuntimeError("only what spawn_procs() returned, where it was called, can respawn processes")
        ended = _core.ended_ranks(self._supervised)
        if ended is None:
            raise RuntimeError("`ProcMesh` has already been stopped")
        wanted = check_ranks(ranks, len(self._nodes), ended, self._name)
        if not wanted:
            return _core.completed_future(None)
        return when_up(self, self._origin.respawn(wanted), "respawn", None)

    @property
    def epoch(self) -> int:
        """How many processes of the mesh have been started in the place of others, as far as is known here."""
        return int(_core.successions_of(self._nodes))

    @property
    def _per_proc_count(self) -> int:
        count = 1
        for size in self._per_proc.values():
            count *= size
        return count

    def _new_actors(self) -> tuple[list[tuple[int, int]], list[str], list[int]]:
        """Identities for one new actor (or swarm) in each process, and the shape of their mesh."""
        self._introduce(self._nodes)
        await_started(self._nodes)
        count = self._per_proc_count
        nodes: list[int] = _core.latest([self._nodes[rank] for rank in self._view.ranks()])
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
        mesh = ActorMesh(ids, whole(labels, sizes), Class, name, str(context().actor_instance), owned=True)
        mesh._job = self._job
        value = (Class._reference(), name, tuple(labels), tuple(sizes), args)
        mesh._supervise()
        self._new_origin(mesh, 0).record = mesh._ref().spawn(0, 0, value, None, self._kept_max())
        return mesh

    @property
    def initialized(self) -> Future[bool]:
        """True when all processes are up and their bootstrap function has run.

        Its future raises what that raised (``ActorError``), or ``SupervisionError`` if a process has ended.
        """
        self._check_alive()
        return when_up(self, self._nodes_in_view(), "initialized", True)

    def stop(self, reason: str = STOPPED_BY_CLIENT) -> Future[None]:
        """Stops the actors of these processes, then ends the processes. Starts at once; twice is fine.

        Actors handle what was sent before and have 3 s for ``__cleanup__``; what has not ended after 10 s is killed.
        Later calls raise ``SupervisionError``: ``stopped: <reason>``. Only for owners, else ``ValueError``.
        """
        check_text("the reason for stopping", reason)
        if not self._owned:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        if not self._stopped:
            self._stopped.append(reason)
        _core.note_stopping(self._nodes)
        if self._origin is not None:
            self._origin.forget()
        return self._ends(self._stop_nodes(reason, runtime.limit("process_exit_timeout")))

    def _unwatch(self) -> None:
        """Only calls say what becomes of it, and of what is spawned on it."""
        self._end_supervision()
        self._watched = False

    def _supervise(self, creator: str) -> None:
        """The actor that runs is told of failures."""
        view = self._view
        labels, sizes = tuple(view.labels), tuple(view.ndslice.sizes)
        self._supervised = _core.own(self._name, "", creator, labels, sizes, self._nodes)
        if self._origin is not None:
            self._origin.mesh_id = self._supervised

    def _stop_nodes(self, reason: str, limit: float) -> Future[None]:
        if self._host is not None:
            return self._host._stop_nodes(self._nodes, reason, limit)
        ending = _core.stop_procs(self._nodes, reason, limit)
        if here().launched:
            from monarch._meshes import launchers

            launchers.note_stopping(self._nodes, limit, ending)
        return ending

    def _not_ended(self) -> str:
        left = [rank for rank, node in enumerate(self._nodes) if _core.down_reason(node) is None]
        if not self._view.labels or not left:
            return f"the processes of {self._name!r}"
        return f"{len(left)} of {len(self._nodes)} processes of {self._name!r} ({ranks_text(left)})"

    def _kill(self) -> Future[None]:
        return self._stop_nodes(STOPPED_BY_CLIENT, 0.0)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = 20,
        *,
        on_slow: str = "block",
    ) -> None:
        """Changes how lines of these processes reach the script's stdout and stderr, from now on.

        Without it each comes as ``[3] line`` (the rank in its mesh), of all meshes but the first that prints as
        ``[trainer 3] line``.

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
        self._check_alive()
        nodes = self._nodes_in_view()
        await output.set_output(nodes, stream_to_client, aggregate_window_sec, level, on_slow)
        if self._origin is not None:
            self._origin.output = stream_to_client, aggregate_window_sec, level, on_slow
        setup = spawn_set_up(self, nodes, "logging_option")
        await setup.set_log_level.call(level)
        setup.stop()

    def stopped_ranks(self) -> list[int]:
        """The ranks of this mesh whose process is stopped now: by SIGSTOP, or held by a debugger.

        Calls to them wait until they go on. Of processes that this one has spawned; of those of this machine, while
        calls wait for them, also which are frozen with their cgroup or held in the kernel. Those on other hosts their
        hosts are asked for: milliseconds, and a second for a host that does not answer, of which none is named.
        """
        nodes = self._nodes_in_view()
        elsewhere = stopped_on_hosts(nodes)
        return [rank for rank, node in enumerate(nodes) if node in elsewhere or _core.is_halted(node)]

    def _nodes_in_view(self) -> list[int]:
        """To be sent to."""
        await_started(self._nodes)
        return [self._nodes[rank] for rank in self._view.ranks()]

    def _check_alive(self) -> None:
        if self._stopped:
            raise RuntimeError("`ProcMesh` has already been stopped")

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a mesh of one; else ``NotImplementedError``."""
        if len(self._view) != 1:
            raise NotImplementedError("`ProcMesh.host_mesh` is not yet supported for non-singleton proc meshes.")
        if self._host is None:
            return _host_of_this_process()
        return self._host._one(self._view.ranks()[0] * len(self._host) // len(self._nodes))

    async def __aenter__(self) -> ProcMesh:
        self._check_alive()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        owned = self._owned_ids()
        await block_end.wait_async(self, self.stop(), error)
        if error is None:
            block_end.ended(owned)

    def __enter__(self) -> ProcMesh:
        self._check_alive()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        owned = self._owned_ids()
        block_end.wait(self, self.stop(), error)
        if error is None:
            block_end.ended(owned)

    def _owned_ids(self) -> set[int]:
        """Of these processes and of what was spawned on them from here, as failures name them."""
        spawned = () if self._origin is None else self._origin.spawned()
        return {self._supervised, *(each.mesh_id for each in spawned)}

    def get(self) -> ProcMesh:
        """For programs that were written when spawning gave a future: returns the mesh itself."""
        deprecated_wait(self)
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
        options = f", per_proc={self._per_proc}" if self._per_proc else ""
        options += f", restart={self._restart}" if self._restart is not None else ""
        return f"ProcMesh({self._name!r}, {self._describe()}{options})"

    def _new_with_shape(self, shape: Shape) -> ProcMesh:
        view = ProcMesh(self._nodes, shape, self._name)
        view._stopped, view._per_proc, view._local = self._stopped, self._per_proc, self._local
        view._job, view._host = self._job, self._host
        view._origin, view._restart = self._origin, self._restart
        return view


def _no_tensor_engine() -> RuntimeError:
    return RuntimeError("DeviceMesh is not available because tensor_engine was not compiled (USE_TENSOR_ENGINE=0)")


def this_proc() -> ProcMesh:
    """The process of the current actor, or the script's own, as a mesh of one without dimensions."""
    local = context().actor_instance._local
    mesh = ProcMesh([_core.node_id()], whole([], []), "this_proc")
    mesh._local = local
    if here().host_node is not None:
        mesh._host = _host_of_this_process()
    return mesh
