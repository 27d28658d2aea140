"""What processes are doing: stacks of all their threads, taken by the core without what runs there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._meshes import active
from monarch._meshes.actor_mesh import ActorMesh
from monarch._meshes.agents import await_started
from monarch._meshes.host_mesh import HostMesh
from monarch._meshes.proc_mesh import ProcMesh
from monarch._runtime import runtime
from monarch._runtime.deadline import check_seconds
from monarch._values.stack_report import StackReport, make_report

if TYPE_CHECKING:
    from monarch._calls.future import Future

__all__ = ["dump_stacks"]

LIMIT = 1.0  # seconds

Place = tuple[int, str, "int | None"]  # a node, the name of its mesh, its rank there


def dump_stacks(*meshes: ActorMesh | ProcMesh | HostMesh, timeout: float = LIMIT) -> Future[StackReport]:
    """What the processes of these meshes are doing: one report of the stacks of all their threads, grouped by likeness.

    It needs nothing of what runs there. An actor may compute in Python or in C with the GIL held, wait for a lock, or
    hang in its constructor: each thread is interrupted by a signal for a moment, writes down its stack, and goes on.

        print(dump_stacks(trainers).get())

    Args:
        meshes: of actors, processes or hosts, or slices of them; none: the script's own process and all that it has
            spawned. Of a mesh of actors it is their processes, of hosts the processes that were spawned there.
        timeout: seconds after which a process that has not answered is reported as such. One that is stopped or dead
            is named so, and holds up nothing.
    """
    runtime.ensure()
    return take(_places(meshes) if meshes else everything(), check_seconds(timeout, "timeout"))


def take(places: list[Place], timeout: float) -> Future[StackReport]:
    """Each process once, as what it is first."""
    at: dict[int, Place] = {}
    for place in places:
        at.setdefault(place[0], place)

    members = [(mesh, rank) for _, mesh, rank in at.values()]
    return _core.take_stacks(list(at), timeout, lambda answers: make_report(members, answers))


def report() -> None:
    """Prints what this process and all that it has spawned do: SIGQUIT."""
    text = str(take(everything(), LIMIT).get())
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def everything() -> list[Place]:
    """This process, and those that it has spawned."""
    places: list[Place] = []
    for spawned in active.spawned():
        places += _of_procs(*spawned)
    return [*places, (_core.node_id(), "", None)]


def _places(meshes: tuple[Any, ...]) -> list[Place]:
    places: list[Place] = []
    for mesh in meshes:
        if isinstance(mesh, ActorMesh):
            mesh._introduce(node for node, _ in mesh._ids)
            places += _of_procs([node for node, _ in mesh._ids], mesh._view, mesh._name)
        elif isinstance(mesh, ProcMesh):
            mesh._introduce(mesh._nodes)
            await_started(mesh._nodes)
            places += _of_procs(mesh._nodes, mesh._view, mesh._name)
        elif isinstance(mesh, HostMesh):
            places += _of_hosts(mesh)
        else:
            raise TypeError(f"dump_stacks takes meshes of actors, processes or hosts, not {mesh!r}")
    return places


def _of_procs(nodes: list[int], view: Any, name: str) -> list[Place]:
    ranks = view.ranks()
    return [(nodes[rank], name, rank if view.labels or len(nodes) > 1 else None) for rank in ranks]


def _of_hosts(hosts: HostMesh) -> list[Place]:
    """The agents there, and what was spawned through this object."""
    places = [] if hosts._agents is None else _of_procs(hosts._agents.nodes, hosts._view, hosts._name)
    there = {place[0] for place in places}
    through = set(hosts._spawned.nodes)
    for nodes, view, name in active.spawned():
        if through.intersection(nodes):
            of_mesh = _of_procs(nodes, view, name)
            places += [place for place in of_mesh if not hosts._asks_agents() or _core.host_of(place[0]) in there]
    return places
