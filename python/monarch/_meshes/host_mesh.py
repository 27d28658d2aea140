"""Host meshes: ``this_host()``, and how processes are spawned on hosts."""

from __future__ import annotations

import contextvars
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._calls import pickling
from monarch._checks import check_sizes, check_text
from monarch._meshes import active, agents, block_end, inhabitants
from monarch._meshes.agents import Agents
from monarch._meshes.mesh import STOPPED_BY_CLIENT, Mesh, whole
from monarch._meshes.origins import ProcsOrigin
from monarch._meshes.proc_mesh import ProcMesh, provide_this_host, this_proc
from monarch._processes import launch, output
from monarch._runtime import runtime
from monarch._runtime.context import context
from monarch._runtime.here import here
from monarch._runtime.interrupts import uninterrupted
from monarch._runtime.loading import check_spawn
from monarch._values.geometry import Point, Region, Shape, Slice

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._files.workspace import Workspace
    from monarch._meshes.launchers import Launches, ProcLauncher
    from monarch._processes.bootstrap import BootstrapCommand

__all__ = ["HostMesh", "this_host"]


class Spawned:
    """What an owner of hosts and its views have in common."""

    __slots__ = ("_look_at", "ended", "nodes", "shut_down", "syncing")

    def __init__(self) -> None:
        self.nodes: list[int] = []  # that are not known to be down, and some that are
        self.syncing: set[int] = set()  # those of sync_workspace(), which are nobody else's
        self.ended = False
        self.shut_down = False  # the hosts end too, or have
        self._look_at = 64  # so many nodes, to leave out those that are down

    def add(self, nodes: list[int]) -> None:
        self.nodes += nodes
        if len(self.nodes) > self._look_at:
            self.nodes = [node for node in self.nodes if _core.down_reason(node) is None]
            self._look_at = max(64, 2 * len(self.nodes))


class HostMesh(Mesh):
    """Machines that processes can be spawned on: this one, ``this_host()``, or those of a job.

    As a context manager, ``with`` or ``async with``, it shuts down at the end, as a :class:`ProcMesh` stops. Equal are
    the same hosts in the same shape. It may be sent in messages; this machine is this machine there, too.
    """

    _ELSEWHERE = {
        "options": "they are of processes: spawn_procs(...).options(restart=...).spawn(...)",
        "respawn": "processes are respawned by what spawn_procs() has returned: procs.respawn(ranks)",
    }

    is_fake_in_process = False
    stream_logs = True  # what processes print reaches the script
    _at_interrupt = "kills them at once"

    def __init__(self, view: Shape, spawned: Spawned, owned: bool, python: str | None) -> None:
        self._view = view
        self._name = "host"
        self._spawned = spawned
        self._owned = owned
        self._python = python  # None: the interpreter of whoever spawns
        self._elsewhere: tuple[str, str] | None = None  # identity and name of another machine than this
        # Who starts processes there, by base rank; None: this machine, and whoever spawns does it himself.
        self._agents: Agents | None = None
        self._outlives = False  # what these are for this script is not all that they are: somebody else may come
        self._in_job: tuple[str | None, str] | None = None  # apply_id, if they are of a job, and under which name

    @classmethod
    def _received(
        cls, labels: list[str], offset: int, sizes: list[int], strides: list[int], python: str | None,
        in_job: tuple[str | None, str] | None, machine: tuple[str, str] | Agents,
    ) -> HostMesh:  # fmt: skip
        host = cls(Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides)), Spawned(), False, python)
        host._in_job = in_job
        if isinstance(machine, Agents):
            host._agents = machine
        else:
            host._elsewhere = None if machine[0] == _this_machine()[0] else machine
        return host

    def __reduce__(self) -> Any:
        n = self._view.ndslice
        machine = self._agents or self._elsewhere or _this_machine()
        view = self._view.labels, n.offset, n.sizes, n.strides
        return HostMesh._received, (*view, self._python, self._in_job, machine)

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        proc_launcher: type[ProcLauncher] | ProcLauncher | None = None,
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
            proc_launcher: who starts and ends them, if a program's own code is to: a subclass of ``ProcLauncher``
                (``monarch._src.actor.proc_launcher``), of which an actor is made in this process, or such an actor.
                What it does not bring up within ``mesh_proc_spawn_max_idle`` could not be started. On hosts over a
                network: ``NotImplementedError``.

        Sizes that are not positive, more than 65,536 processes for each host, a ``proc_bind`` of another length, an
        unknown key in it: ``ValueError``. After ``stop`` or ``shutdown``: ``RuntimeError``.

        The processes belong to whoever calls this, and end with it, also if the mesh came from another job. It must be
        used on its own machine: ``RuntimeError``.

        On the hosts of ``hosts_from_config`` the dimensions of the hosts come first, then those of ``per_host``, and
        ranks are row-major. The processes have the environment, working directory and ``sys.path`` of their host, which
        are the script's when that was made. What is first spawned on them, or sends them on, waits until each host has
        begun to start them: a few milliseconds. What a host cannot start shows at the use of its ranks;
        ``SupervisionError`` here if one is known to have ended: none is started.
        """
        check_sizes("per_host", {} if per_host is None else per_host, "process")
        if name is not None:
            check_text("the name of the processes", name)
        if bootstrap is not None and not callable(bootstrap):
            raise TypeError(f"bootstrap must be a function without arguments, but is {bootstrap!r}")
        return _spawn_procs(self, per_host or {}, bootstrap, name, proc_bind, bootstrap_command, proc_launcher)

    def with_python_executable(self, python_executable: str) -> HostMesh:
        """The same hosts, where processes run the interpreter ``python_executable``, and those that they spawn in turn.

        A path without a slash is looked up in ``PATH``. The interpreter keeps its own packages; what it does not have
        is looked for where the script finds it, this package included. A script may stand in its place that runs an
        interpreter with the arguments that it was given.
        """
        if not isinstance(python_executable, (str, os.PathLike)):
            raise TypeError(f"with_python_executable takes the path of an interpreter, not {python_executable!r}")
        path = os.fspath(python_executable)
        if not path:
            raise ValueError("with_python_executable needs the path of an interpreter")
        host = self._new_with_shape(self._view)
        host._owned, host._outlives = self._owned, self._outlives
        host._python = os.path.abspath(path) if os.sep in path else path
        return host

    def sync_workspace(self, workspace: Workspace, conda: bool = False, auto_reload: bool = False) -> Future[None]:
        """Makes folders of this machine the same on each host, below its ``$WORKSPACE_DIR``. Starts at once.

        Only what differs is sent; what is gone here is deleted there; what ``.gitignore`` names is left alone. When a
        host cannot write, the future raises ``RuntimeError``, and no host has changed.

        Args:
            workspace: which folders: a ``monarch.tools.config.Workspace``. ``ValueError`` if it has none.
            conda: its conda environment too, which gets its own name there; without one ``RuntimeError``.
            auto_reload: modules whose files have changed are loaded anew in processes that were spawned through this
                object.

        On slices, and on what came in a message: ``RuntimeError``, also from the future.
        """
        from monarch._calls.python_futures import on_thread, refused
        from monarch._meshes import syncing

        dirs = syncing.check(workspace, conda)
        if not self._owned:
            text = "cannot sync_workspace `HostMesh` that is a reference instead of owned"
            return refused("sync_workspace()", RuntimeError(text))
        self._check_alive()
        run = contextvars.copy_context().run
        return on_thread(
            lambda: run(self._sync, dirs, workspace.env if conda else None, conda, auto_reload), "monarch-sync"
        )

    def _sync(self, dirs: dict[str, str], env: Any, conda: bool, auto_reload: bool) -> None:
        from monarch._meshes import reloading, syncing

        environment = syncing.add_conda(dirs, env) if conda else None
        if not dirs:
            return
        procs = start_mesh(self, {}, None, "workspace")
        self._spawned.syncing.intersection_update(self._spawned.nodes)
        self._spawned.syncing.update(procs._nodes)
        try:
            changed = syncing.sync(procs, dirs, environment)
        finally:
            procs.stop().get()
        if auto_reload:
            users = [node for node in self._spawned.nodes if node not in self._spawned.syncing]
            reloading.reload_in(users, None if self._agents is None else self._agents._job, changed)

    def stop(self) -> Future[None]:
        """Stops the processes that were spawned through this object, which is spent afterwards. Starts at once.

        Only the owner may: the future of a slice, or of a mesh that came in a message, raises ``RuntimeError``, which
        is a line on stderr where nobody looks at it. What was spawned on some hosts ends by its own ``stop()``.
        """
        return self._end("stop")

    def shutdown(self) -> Future[None]:
        """As :meth:`stop`, and ends the hosts of ``hosts_from_config``; this machine has no worker program to end."""
        return self._end("shut down")

    def _end(self, what: str, limit: float | None = None) -> Future[None]:
        """``limit``: seconds that what was spawned has to end well; None: ``process_exit_timeout``."""
        runtime.ensure()
        if not self._owned:
            text = f"cannot {what} `HostMesh` that is a reference instead of owned"
            from monarch._calls.python_futures import refused

            return refused("stop() of hosts" if what == "stop" else "shutdown() of hosts", RuntimeError(text))
        self._spawned.ended = True
        self._spawned.shut_down |= what != "stop"
        if self._agents is not None and self._agents.give_up():
            return _core.completed_future(None)
        limit = runtime.limit("process_exit_timeout") if limit is None else limit
        ending = self._stop_nodes(self._spawned.nodes, STOPPED_BY_CLIENT, limit)
        own_procs = self._own_procs
        if own_procs is None or (what == "stop" and not self._outlives):
            return ending
        if self._outlives and self._agents is not None and what != "stop":
            return agents.then_end(own_procs, ending)
        return agents.then_stop(own_procs, ending)

    @property
    def _own_procs(self) -> ProcMesh | None:
        """Of the owner of hosts that are processes: what they are, once that is known."""
        return self._agents.procs if self._owned and self._agents is not None else None

    def _asks_agents(self) -> bool:
        """Whether agents start processes there, and not this process itself."""
        return self._agents is not None and list(self._key()[0]) != [here().host_node]

    def _in_logs(self) -> tuple[str | None, str | None]:
        """What these hosts are called in names of log files (None: they are that of this process), and their job."""
        if self._agents is None or (self._agents.are_known() and not self._asks_agents()):
            return None, None
        job, name = self._in_job or (None, "hosts")
        return name, job

    def _start_nodes(self, common: launch.Common, wanted: list[launch.Wanted], waits: bool = False) -> list[int]:
        """Starts these processes, as many on each host, in rank order; ``waits`` until their hosts say so."""
        if self._agents is None or not self._asks_agents():
            nodes = launch.start_here(common, wanted, None if self._agents is None else here().host_node)
            hosts = [0] * len(nodes)
        else:
            waits = waits or common.launches is not None  # who is started may come at once
            nodes = agents.start_nodes(self._agents, self._view, common, wanted, waits)
            each = len(nodes) // len(self._view)
            hosts = [self._agents.nodes[rank] for rank in self._view.ranks() for _ in range(each)]
        if common.launches is not None:
            self._have_started(common.launches, nodes, wanted, hosts)
        return nodes

    def _have_started(
        self, launches: Launches, nodes: list[int], wanted: list[launch.Wanted], hosts: list[int]
    ) -> None:
        from monarch._meshes.launchers import default_python

        try:
            launches.begin(nodes, wanted, hosts, default_python(self._python))
        except BaseException:
            self._stop_nodes(nodes, "their launcher cannot be asked", 0.0)
            raise

    def _stop_nodes(self, nodes: list[int], reason: str, limit: float) -> Future[None]:
        _core.note_stopping(nodes)
        asks = self._asks_agents()
        ending = agents.stop_nodes(nodes, reason, limit) if asks else _core.stop_procs(nodes, reason, limit)
        return ending if not here().launched else _told(nodes, limit, ending)

    def _not_ended(self) -> str:
        left = sum(_core.down_reason(node) is None for node in self._spawned.nodes)
        where = "this host" if self._agents is None else f"{len(self)} host{'s' * (len(self) > 1)}"
        return f"{left} process{'es' * (left != 1)} on {where}" if left else where

    def _kill(self) -> Future[None]:
        if self._agents is not None and self._agents.give_up():
            return _core.completed_future(None)
        ending = self._stop_nodes(self._spawned.nodes, STOPPED_BY_CLIENT, 0.0)
        return ending if self._own_procs is None else agents.then_kill(self._own_procs, ending)

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

    async def __aexit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        await block_end.wait_async(self, self.shutdown(), error)

    def __enter__(self) -> HostMesh:
        self._check_alive()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        block_end.wait(self, self.shutdown(), error)

    @property
    def initialized(self) -> Future[bool]:
        """True when the hosts are there; raises ``SupervisionError`` if one of them has ended."""
        runtime.ensure()
        if self._agents is None or (self._agents.are_known() and not self._asks_agents()):
            return _core.completed_future(True)
        return agents.are_there(self._agents, self._view)

    @property
    def region(self) -> Region:
        """Labels and base ranks of these hosts."""
        return self._view.region

    def _members(self) -> Sequence[Any]:
        if self._agents is not None:
            return self._agents.nodes
        return (self._elsewhere[0] if self._elsewhere else "this host",)

    def __repr__(self) -> str:
        return f"HostMesh({self._describe()})"

    def _new_with_shape(self, shape: Shape) -> HostMesh:
        view = HostMesh(shape, self._spawned, False, self._python)
        view._elsewhere, view._agents, view._in_job = self._elsewhere, self._agents, self._in_job
        return view


def _told(nodes: list[int], limit: float, ending: Future[None]) -> Future[None]:
    """Launchers, if some of these processes are theirs, hear of it."""
    from monarch._meshes import launchers

    launchers.note_stopping(nodes, limit, ending)
    return ending


_machine: tuple[str, str] | None = None


def _this_machine() -> tuple[str, str]:
    """What tells this machine from others, and its name for people."""
    global _machine
    if _machine is None:
        _machine = (_core.machine_id(), os.uname().nodename)
    return _machine


def this_host() -> HostMesh:
    """The host of the current actor, or of the script, as a mesh without dimensions. Starts the runtime."""
    runtime.ensure()
    host = HostMesh(whole([], []), Spawned(), True, launch.default_python)
    if (node := here().host_node) is not None:
        host._agents = Agents([node])
    return host


provide_this_host(this_host)


def _spawn_procs(
    host: HostMesh,
    per_host: dict[str, int],
    bootstrap: Any,
    name: str | None,
    proc_bind: list[dict[str, str]] | None,
    bootstrap_command: Any,
    proc_launcher: Any,
) -> ProcMesh:
    check_spawn()

    def spawn() -> ProcMesh:
        procs = start_mesh(
            host, per_host, bootstrap, name or "procs", proc_bind, bootstrap_command, launcher=proc_launcher
        )
        active.note_spawned(procs)
        instance = context().actor_instance
        procs._supervise(str(instance))
        instance._own(procs)
        return procs

    procs = _whole_or_not(spawn)
    if local := context().actor_instance._local:
        with inhabitants.admission(local) as here:
            here.procs.append(procs)
    return procs


def _whole_or_not(spawn: Callable[[], ProcMesh]) -> ProcMesh:
    """Ctrl-C, raised in the main thread, comes before it or after it; then what it has made is stopped.

    So it leaves no processes without a handle.
    """
    made: list[ProcMesh] = []
    try:
        uninterrupted(lambda: made.append(spawn()))
    except BaseException:
        for procs in made:
            procs.stop()
        raise
    return made[0]


def start_mesh(
    host: HostMesh, per_host: dict[str, int], bootstrap: Any, name: str, proc_bind: Any = None, command: Any = None,
    are_hosts: bool = False, launcher: Any = None,
) -> ProcMesh:  # fmt: skip
    """``HostMesh.spawn_procs``, of which nobody is told."""
    host._check_here()
    runtime.ensure()
    host._check_alive()
    shape = _shape_of_procs(host, per_host)
    extent = shape.extent
    labels, sizes = list(extent.labels), list(extent.sizes)
    points = [Point(rank, extent) for rank in range(len(shape))]
    starts: list[Any] = [(None, None)] * len(points)
    if proc_bind is not None or command is not None:
        from monarch._processes import bootstrap as commands

        starts = commands.starts(points, len(points) // len(host), command, proc_bind)
    setup = None if bootstrap is None else pickling.dumps_code(bootstrap)
    number = int.from_bytes(os.urandom(8), "little") >> 1 | 1
    launches = None if launcher is None else _launches(host, launcher, name, proc_bind, starts)
    common = launch.Common(number, setup, (labels, sizes, name), host._python, are_hosts, launches)
    output_of = output.output_settings(name, *host._in_logs())
    on_host = [rank for rank in host._view.ranks() for _ in range(len(points) // len(host))]
    wanted = []
    for point, (start, prefix), base_rank in zip(points, starts, on_host):
        where = f"rank {point!r} of {name!r}" if labels else repr(name)
        of_output = output_of(point.rank if labels else -1, base_rank)
        wanted.append(launch.Wanted(where, start, prefix, list(point.values()), of_output))
    nodes = host._start_nodes(common, wanted)
    host._spawned.add(nodes)
    procs = ProcMesh(nodes, shape, name, owned=True)
    procs._origin = ProcsOrigin(nodes, common, wanted, host)
    procs._origin.stopped = procs._stopped
    if host._agents is not None:
        procs._host = host._new_with_shape(host._view)
        procs._job = host._agents._job
        procs._introduce(nodes)
    return procs


def _launches(host: HostMesh, launcher: Any, name: str, proc_bind: Any, starts: list[Any]) -> Launches:
    from monarch._meshes import launchers

    if host._agents is not None and host._agents._job is not None:
        raise NotImplementedError("proc_launcher: not on the hosts of another job")
    if any(command is not None and command.arg0 is not None for command, _ in starts):
        raise ValueError("a launcher is not told arg0 of a BootstrapCommand: leave it out")
    return launchers.launches_of(launcher, this_proc(), name, proc_bind)


def _shape_of_procs(host: HostMesh, per_host: dict[str, int]) -> Shape:
    """The dimensions of the hosts, then those of the processes on each."""
    overlap = [label for label in per_host if label in host._view.labels]
    if overlap:
        raise ValueError(f"per_host labels {overlap} overlap with host labels {tuple(host._view.labels)}")
    check_sizes("per_host", per_host, "process")
    if (count := math.prod(int(size) for size in per_host.values())) > _core.LAUNCHES_MAX:
        raise ValueError(
            f"per_host asks for {count} processes on each host: at most {_core.LAUNCHES_MAX} can be started at once"
        )
    labels = [*host._view.labels, *per_host]
    return whole(labels, [*host._view.ndslice.sizes, *(int(size) for size in per_host.values())])
