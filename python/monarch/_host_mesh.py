"""Host meshes: ``this_host()``, and how processes are spawned on hosts."""

from __future__ import annotations

from monarch import _active_meshes, _context, _core, _pickle, _runtime
from monarch._geometry import Point, Shape, Slice
from monarch._mesh import STOPPED_BY_CLIENT, ActorMesh, ProcMesh, _Mesh, _whole, check_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from monarch._bootstrap import BootstrapCommand
    from monarch._future import Future
    from monarch._geometry import Region
    from monarch._hosts import HostAgent

__all__ = ["HostMesh", "this_host"]


class _Spawned:
    """What an owner of hosts and its views have in common."""

    __slots__ = ("_look_at", "ended", "nodes")

    def __init__(self) -> None:
        self.nodes: list[int] = []  # that are not known to be down, and some that are
        self.ended = False
        self._look_at = 64  # so many nodes, to leave out those that are down

    def add(self, nodes: list[int]) -> None:
        self.nodes += nodes
        if len(self.nodes) > self._look_at:
            self.nodes = [node for node in self.nodes if _core.down_reason(node) is None]
            self._look_at = max(64, 2 * len(self.nodes))


class HostMesh(_Mesh):
    """Machines that processes can be spawned on: this one, ``this_host()``, or what ``hosts_from_config`` makes.

    As a context manager, ``with`` or ``async with``, it shuts down at the end. Equal are the same hosts in the same
    shape. It may be sent in messages; this machine is this machine there, too.
    """

    _NOT_YET = frozenset({"sync_workspace"})

    is_fake_in_process = False
    stream_logs = True  # what processes print reaches the script

    def __init__(self, view: Shape, spawned: _Spawned, owned: bool, python: str | None) -> None:
        self._view = view
        self._name = "host"
        self._spawned = spawned
        self._owned = owned
        self._python = python  # None: the interpreter of whoever spawns
        self._elsewhere: tuple[str, str] | None = None  # identity and name of another machine than this
        # Who starts processes there, by base rank; None: this machine, and whoever spawns does it himself.
        self._agents: ActorMesh | None = None
        self._own_procs: ProcMesh | None = None  # of the owner of hosts that are processes: what they are

    @classmethod
    def _received(
        cls, labels: list[str], offset: int, sizes: list[int], strides: list[int], python: str | None,
        machine: tuple[str, str] | ActorMesh,
    ) -> HostMesh:  # fmt: skip
        host = cls(Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), _Spawned(), False, python)
        if isinstance(machine, ActorMesh):
            host._agents = machine
        else:
            host._elsewhere = None if machine[0] == _this_machine()[0] else machine
        return host

    def __reduce__(self) -> Any:
        n = self._view.ndslice
        machine = self._agents or self._elsewhere or _this_machine()
        return HostMesh._received, (self._view.labels, n.offset, n.sizes, n.strides, self._python, machine)

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
    ) -> ProcMesh:
        """Starts processes and returns at once, before they are up.

        They have the script's environment, working directory and ``sys.path`` as they are now.

        Args:
            per_host: how many along which dimensions, ``{"gpus": 8}``; none: one process.
            bootstrap: a function (``def`` or ``async def``) without arguments that runs once in every process before
                any actor is made there. If it raises, ``initialized`` and every use of the mesh raise ``ActorError``.
            name: for reports.
            proc_bind: for each process of a host a dict of the CPUs and memory that it may use: ``cpunodebind``,
                ``membind``, ``physcpubind`` as the options of numactl, which must be installed, ``cpus`` as taskset's
                list.
            bootstrap_command: how to start them (``default_bootstrap_cmd()``, changed), or a function that is given
                each one's point in the mesh and returns how. A program that cannot be run shows at the use of the
                mesh, as ``SupervisionError``.

        Sizes that are not positive, a ``proc_bind`` of another length, an unknown key in it: ``ValueError``. After
        ``stop`` or ``shutdown``: ``RuntimeError``.

        The processes belong to whoever calls this, and end with it, also if the mesh came from another job. It must be
        used on its own machine: ``RuntimeError``.

        On the hosts of ``hosts_from_config`` the dimensions of the hosts come first, then those of ``per_host``, and
        ranks are row-major. The processes have the environment, working directory and ``sys.path`` of their host, which
        are the script's when that was made. This blocks until each host has begun to start them: a few milliseconds.
        ``SupervisionError`` if one of the hosts is dead: none is started.
        """
        return _spawn_procs(self, per_host or {}, bootstrap, name, proc_bind, bootstrap_command)

    def with_python_executable(self, path: str) -> HostMesh:
        """The same hosts, where processes run the interpreter ``path``, and those that they spawn in turn.

        A path without a slash is looked up in ``PATH``. The interpreter keeps its own packages; what it does not have
        is looked for where the script finds it, this package included. A script may stand in its place that runs an
        interpreter with the arguments that it was given.
        """
        import os

        path = os.fspath(path)
        if not path:
            raise ValueError("with_python_executable needs the path of an interpreter")
        host = self._new_with_shape(self._view)
        host._owned, host._own_procs = self._owned, self._own_procs
        host._python = os.path.abspath(path) if os.sep in path else path
        return host

    def stop(self) -> Future[None]:
        """Stops the processes that were spawned through this object, which is spent afterwards. Starts at once.

        Only the owner may: the future of a slice, or of a mesh that came in a message, raises ``RuntimeError``.
        """
        return self._end("stop")

    def shutdown(self) -> Future[None]:
        """As :meth:`stop`, and ends the hosts of ``hosts_from_config``; this machine has no worker program to end."""
        return self._end("shut down")

    def _end(self, what: str) -> Future[None]:
        _runtime.ensure()
        if not self._owned:
            text = f"cannot {what} `HostMesh` that is a reference instead of owned"
            return _core.completed_future(RuntimeError(text), failed=True)
        self._spawned.ended = True
        ending = self._stop_nodes(self._spawned.nodes, STOPPED_BY_CLIENT)
        if self._own_procs is None or what == "stop":
            return ending
        from monarch import _hosts

        return _hosts.then_stop(self._own_procs, ending)

    def _asks_agents(self) -> bool:
        """Whether agents start processes there, and not this process itself."""
        return self._agents is not None and list(self._key()[0]) != [_runtime.host_agent]

    def _start_nodes(self, requests: list[tuple[Any, ...]]) -> list[int]:
        """Starts a process for each request, in rank order: (arguments of _runtime.launch(), who it is)."""
        if not self._asks_agents():
            return start_here(requests)
        from monarch import _hosts

        return _hosts.start_nodes(self._agent_view(), requests)

    def _stop_nodes(self, nodes: list[int], reason: str) -> Future[None]:
        limit = _runtime.limit("process_exit_timeout")
        if not self._asks_agents():
            return _core.stop_procs(nodes, reason, limit)
        from monarch import _hosts

        return _hosts.stop_nodes(self._agent_view(), nodes, reason, limit)

    def _agent_view(self) -> HostAgent:
        agents: Any = self._agents
        return agents._new_with_shape(self._view)

    def _one(self, index: int) -> HostMesh:
        """The host of that rank, without dimensions."""
        return self._new_with_shape(Shape([], Slice(offset=self._view.ranks()[index], sizes=[], strides=[])))

    def _check_alive(self) -> None:
        if self._spawned.ended:
            raise RuntimeError("HostMesh has already been shut down")

    def _check_here(self) -> None:
        if self._elsewhere is not None:
            raise RuntimeError(
                f"this HostMesh names another machine (or container, or one before a restart): {self._elsewhere[1]!r}, "
                f"and this process runs on {_this_machine()[1]!r}. Processes can be spawned through it only where it is"
            )

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
        """True when the hosts are there; raises ``SupervisionError`` if one of them has ended."""
        _runtime.ensure()
        if not self._asks_agents():
            return _core.completed_future(True)
        agents: Any = self._agent_view()
        agents._gather = lambda entries: True
        return agents.answer.call()

    @property
    def region(self) -> Region:
        """Labels and base ranks of these hosts."""
        return self._view.region

    def _members(self) -> Sequence[Any]:
        if self._agents is not None:
            return self._agents._ids
        return (self._elsewhere[0] if self._elsewhere else "this host",)

    def __repr__(self) -> str:
        return f"HostMesh({self._describe()})"

    def _new_with_shape(self, shape: Shape) -> HostMesh:
        view = HostMesh(shape, self._spawned, False, self._python)
        view._elsewhere, view._agents = self._elsewhere, self._agents
        return view


_machine: tuple[str, str] | None = None


def _this_machine() -> tuple[str, str]:
    """What tells this machine from others, and its name for people."""
    global _machine
    if _machine is None:
        import os

        _machine = (_core.machine_id(), os.uname().nodename)
    return _machine


def this_host() -> HostMesh:
    """The host of the current actor, or of the script, as a mesh without dimensions. Starts the runtime."""
    _runtime.ensure()
    host = HostMesh(_whole([], []), _Spawned(), True, _runtime.default_python)
    if _runtime.host_agent is not None:
        from monarch import _hosts

        host._agents = _hosts.agent(_runtime.host_agent)
    return host


def _spawn_procs(
    host: HostMesh,
    per_host: dict[str, int],
    bootstrap: Any,
    name: str | None,
    proc_bind: list[dict[str, str]] | None,
    bootstrap_command: Any,
) -> ProcMesh:
    procs = start_mesh(host, per_host, bootstrap, name or "procs", proc_bind, bootstrap_command)
    _active_meshes.note_spawned(procs)
    _context.context().actor_instance._own(procs)
    if local := _context.context().actor_instance._local:
        from monarch import _local

        with _local.admission(local) as admit:
            admit(procs)
    return procs


def start_mesh(
    host: HostMesh, per_host: dict[str, int], bootstrap: Any, name: str, proc_bind: Any = None, command: Any = None
) -> ProcMesh:
    """``HostMesh.spawn_procs``, of which nobody is told."""
    host._check_here()
    _runtime.ensure()
    host._check_alive()
    shape = _shape_of_procs(host, per_host)
    extent = shape.extent
    labels, sizes = list(extent.labels), list(extent.sizes)
    points = [Point(rank, extent) for rank in range(len(shape))]
    per_host_count = len(points) // len(host)
    starts: list[Any] = [(None, None)] * len(points)
    if proc_bind is not None or command is not None:
        from monarch import _bootstrap

        starts = _bootstrap.starts(points, per_host_count, command, proc_bind)
    setup = None if bootstrap is None else _pickle.dumps_code(bootstrap)
    from monarch import _logs

    output = _logs.output_settings(name)
    agents = None if host._agents is None else host._key()[0]
    requests = []
    for point, (start, prefix) in zip(points, starts):
        where = f"rank {point!r} of {name!r}" if labels else repr(name)
        agent = None if agents is None else agents[point.rank // per_host_count]
        launch = (where, setup, (labels, sizes, name), host._python, start, prefix, agent)
        who = {"coordinates": list(point.values()), **output(point.rank if labels else -1)}
        requests.append((launch, who))
    nodes = host._start_nodes(requests)
    host._spawned.add(nodes)
    procs = ProcMesh(nodes, shape, name, owned=True)
    if host._agents is not None:
        procs._host = host._new_with_shape(host._view)
        procs._job = host._agents._job
        procs._introduce(nodes)
    return procs


def start_here(requests: list[tuple[Any, ...]], owner: int = 0, mesh: int = 0) -> list[int]:
    """Starts processes on this machine. ``owner``, ``mesh``: of whom, and of which mesh, if not of this process."""
    return _core.spawn_procs([{**_runtime.launch(*args), **who} for args, who in requests], owner, mesh)


def _shape_of_procs(host: HostMesh, per_host: dict[str, int]) -> Shape:
    """The dimensions of the hosts, then those of the processes on each."""
    overlap = [label for label in per_host if label in host._view.labels]
    if overlap:
        raise ValueError(f"per_host labels {overlap} overlap with host labels {tuple(host._view.labels)}")
    check_sizes("per_host", per_host, "process")
    labels = [*host._view.labels, *per_host]
    return _whole(labels, [*host._view.ndslice.sizes, *(int(size) for size in per_host.values())])
