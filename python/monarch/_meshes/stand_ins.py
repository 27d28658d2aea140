"""Hosts that are stand-ins on this machine, processes of their own."""

from __future__ import annotations

from monarch._checks import check_text
from monarch._meshes.agents import Agents
from monarch._meshes.host_mesh import HostMesh, Spawned, start_mesh, this_host
from monarch._processes import launch

__all__ = ["hosts_from_config"]

_COUNT = 2


def hosts_from_config(name: str) -> HostMesh:
    """Two hosts, along the dimension ``hosts``: a stand-in for a configured cluster, on this machine.

    Each is a process, which starts those that are spawned on it; when it dies, they do. Programs can be tried for
    several hosts: shapes, ranks, slices, ``this_host()`` in actors. The caller owns them: ``shutdown()`` of what this
    returns ends them, and so does the end of the process that called. ``name`` is for reports.
    """
    check_text("the name of the hosts", name)
    procs = start_mesh(this_host(), {"hosts": _COUNT}, None, name, are_hosts=True)
    hosts = HostMesh(procs._view, Spawned(), True, launch.default_python)
    hosts._agents = Agents(procs._nodes, procs._job)
    hosts._agents.procs = procs
    return hosts
