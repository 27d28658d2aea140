"""What is known of a job of torchx: :class:`ServerSpec`, and of each of its meshes: :class:`MeshSpec`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DEFAULT_PORT", "MeshSpec", "ServerSpec", "mesh_spec_from_str"]

DEFAULT_PORT = 26600
"""Of workers whose role does not say another one."""

# Equal to the members of torchx's AppState, for specs that are made without it.
_State = enum.IntEnum("_State", "UNSUBMITTED SUBMITTED PENDING RUNNING SUCCEEDED FAILED CANCELLED UNKNOWN", start=0)
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass
class MeshSpec:
    """One role of a job: a mesh of hosts.

    Args:
        name: of the role.
        num_hosts: how many replicas it has.
        host_type: what a scheduler calls such a machine; "": not known.
        gpus: of each host; -1: not known.
        transport: of ``server_addrs()``.
        port: that the workers listen on.
        hostnames: one for each host, in the order of replicas; empty as long as the scheduler tells none.
        state: an ``AppState`` of torchx.
        image: of the role.
    """

    name: str
    num_hosts: int
    host_type: str = ""
    gpus: int = -1
    transport: str = "tcp"
    port: int = DEFAULT_PORT
    hostnames: list[str] = field(default_factory=list)
    state: Any = _State.UNSUBMITTED
    image: str = ""

    def server_addrs(self) -> list[str]:
        """``transport://host:port`` for each host, as ``attach_to_workers(workers=...)`` takes them.

        ``RuntimeError`` if not all names of hosts are known, or no port.
        """
        if len(self.hostnames) != self.num_hosts or not all(self.hostnames):
            raise RuntimeError(
                f"mesh {self.name!r} ({self.state.name}) has {self.num_hosts} hosts, but the scheduler has told the "
                f"names of {sum(map(bool, self.hostnames))}: set `hostnames`, one for each"
            )
        if not 0 < self.port < 1 << 16:
            raise RuntimeError(f"mesh {self.name!r} has port {self.port}: its workers must be given one, 1 to 65535")
        return [f"{self.transport}://{f'[{host}]' if ':' in host else host}:{self.port}" for host in self.hostnames]


@dataclass
class ServerSpec:
    """A job: its state, and its meshes.

    Args:
        name: what the scheduler knows it by.
        state: an ``AppState`` of torchx.
        meshes: one for each role.
        scheduler: where it is, such as ``"slurm"``.
        namespace: the middle part of its handle.
        ui_url: where the scheduler shows it, or its logs.
        message: what the scheduler says of its state.
    """

    name: str
    state: Any
    meshes: list[MeshSpec]
    scheduler: str
    namespace: str = ""
    ui_url: str | None = None
    message: str = ""

    @property
    def server_handle(self) -> str:
        """As ``info()`` and ``kill()`` take it."""
        return f"{self.scheduler}://{self.namespace}/{self.name}"

    @property
    def is_running(self) -> bool:
        return bool(self.state.name == "RUNNING")

    @property
    def _has_ended(self) -> bool:
        return self.state.name in _ENDED

    def __str__(self) -> str:
        """A line: its state, and where its log is."""
        said = "".join(self.message.strip().splitlines(keepends=False)[:1])
        where = f"; its log: {self.ui_url}" if self.ui_url else ""
        return f"job {self.server_handle!r} is {self.state.name}{f' ({said})' if said else ''}{where}"

    def get_mesh_names(self) -> list[str]:
        return [mesh.name for mesh in self.meshes]

    def get_mesh_spec(self, mesh_name: str) -> MeshSpec:
        """``ValueError`` if there is none of this name."""
        for mesh in self.meshes:
            if mesh.name == mesh_name:
                return mesh
        raise ValueError(f"job {self.server_handle!r} has no mesh {mesh_name!r}; it has {self.get_mesh_names()}")

    def host0(self, mesh_name: str) -> str:
        """The name of a mesh's first host. ``RuntimeError`` if the job does not run, or its hosts are not known."""
        mesh = self.get_mesh_spec(mesh_name)
        if not self.is_running:
            raise RuntimeError(f"mesh {mesh_name!r} has no hosts: {self}")
        if not mesh.hostnames or not mesh.hostnames[0]:
            raise RuntimeError(f"the scheduler has not told the hosts of mesh {mesh_name!r}: {self}")
        return mesh.hostnames[0]

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``; states by their names."""
        meshes = {mesh.name: {**mesh.__dict__, "state": mesh.state.name} for mesh in self.meshes}
        return {
            "name": self.name,
            "server_handle": self.server_handle,
            "state": self.state.name,
            "ui_url": self.ui_url,
            "message": self.message,
            "meshes": meshes,
        }


def mesh_spec_from_str(mesh_spec_str: str) -> MeshSpec:
    """Of ``"name:count:type"``, such as ``"trainers:4:gpu.small"``; ``ValueError`` if it is none.

    ``gpus`` is what torchx knows of that type, where it is installed and knows it.
    """
    parts = mesh_spec_str.split(":")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"a mesh must be 'name:count:type' such as 'trainers:4:gpu.small', but is {mesh_spec_str!r}")
    name, count, host_type = parts
    if not (count.isascii() and count.isdecimal() and int(count) > 0):
        raise ValueError(f"a mesh must have a count of hosts, 1 or more, but {mesh_spec_str!r} has {count!r}")
    return MeshSpec(name, int(count), host_type, _gpus_of(host_type))


def _gpus_of(host_type: str) -> int:
    try:
        from torchx.specs import resource

        return int(resource(h=host_type).gpu)
    except (ImportError, KeyError):
        return -1
