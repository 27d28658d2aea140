"""Mounts that a job declares: what is wanted, saved with it, and what this process has opened of that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from monarch._meshes.host_mesh import HostMesh
    from monarch.job._trait import JobState

SUBDIR = "$SUBDIR"


class Remote(NamedTuple):
    source: str
    mntpoint: str
    meshes: tuple[str, ...] | None
    python_exe: str | None


class Gather(NamedTuple):
    remote: str
    local: str
    meshes: tuple[str, ...] | None


class Opened:
    """What this process has mounted for a job, and on which hosts."""

    def __init__(self) -> None:
        self.mounts: dict[Remote | Gather, tuple[list[HostMesh], list[Any]]] = {}


def remote(source: str, mntpoint: str | None, meshes: Any, python_exe: str | None) -> Remote:
    where = os.path.abspath(os.fspath(source))
    at = where if mntpoint is None else os.fspath(mntpoint)
    if not os.path.isdir(where):
        raise ValueError(f"remote_mount takes a directory, and {where!r} is none")
    _check_absolute("mntpoint", at)
    if python_exe is not None:
        _check_python(where, at, python_exe)
    return Remote(where, at, _names(meshes), python_exe)


def _check_absolute(what: str, path: str) -> None:
    if not os.path.isabs(path):
        raise ValueError(f"{what} must be an absolute path, since hosts have other working directories; it is {path!r}")


def _check_python(where: str, at: str, python_exe: str) -> None:
    if os.path.isabs(python_exe):
        raise ValueError(f"python_exe must be a path below the mounted directory, but is {python_exe!r}")
    if not os.path.lexists(os.path.join(where, python_exe)):
        raise ValueError(
            f"{python_exe!r} is not in {where!r}, and workers cannot run it; python_exe=None leaves them the "
            "interpreter that they have"
        )
    if SUBDIR in at:
        raise ValueError(f"python_exe must be None for {at!r}: it would be elsewhere on each host")


def gather(remote_mount_point: str, local_mount_point: str, meshes: Any) -> Gather:
    _check_absolute("remote_mount_point", os.fspath(remote_mount_point))
    return Gather(os.fspath(remote_mount_point), os.path.abspath(os.fspath(local_mount_point)), _names(meshes))


def _names(meshes: Any) -> tuple[str, ...] | None:
    if isinstance(meshes, str):
        raise TypeError(f"meshes must be a list of names, but is {meshes!r}")
    return None if meshes is None else tuple(meshes)


def opened(declared: tuple[Remote | Gather, ...], kept: Opened, state: JobState) -> JobState:
    """``state``, when all that is declared is mounted, or refreshed where it was already; with its interpreters."""
    hosts = dict(state._hosts)
    for one in declared:
        if unknown := [name for name in one.meshes or () if name not in hosts]:
            raise ValueError(f"a mount is declared for {unknown[0]!r}, but the job has the meshes {', '.join(hosts)}")
    for one in declared:
        names = list(hosts) if one.meshes is None else list(one.meshes)
        meshes = [state._hosts[name] for name in names]
        at, mounts = kept.mounts.get(one, ([], []))
        if at != meshes or any(mesh._spawned.ended for mesh in at):
            _close(mounts)
            kept.mounts[one] = meshes, _open(one, names, meshes)
        elif isinstance(one, Remote):
            mounts[0].refresh()
        if isinstance(one, Remote) and one.python_exe is not None:
            python = os.path.join(one.mntpoint, one.python_exe)
            hosts.update({name: hosts[name].with_python_executable(python) for name in names})
    state._hosts = hosts
    return state


def _open(one: Remote | Gather, names: list[str], meshes: list[HostMesh]) -> list[Any]:
    from monarch.gather_mount import gather_mount
    from monarch.remotemount import RemoteMount

    if isinstance(one, Remote):
        mount = RemoteMount(meshes, one.source, one.mntpoint)
        mount.open()
        if one.python_exe is not None and mount.without_fuse:
            mount.close()
            raise RuntimeError(
                f"workers cannot run {one.python_exe!r} of the mount, which takes FUSE: {mount.without_fuse[0]}; "
                "python_exe=None leaves them the interpreter that they have, for imports"
            )
        return [mount]
    mounts: list[Any] = []
    try:
        for name, mesh in zip(names, meshes):
            local = os.path.join(one.local, name) if len(names) > 1 else one.local
            mounts.append(gather_mount(mesh, one.remote, local))
    except BaseException:
        _close(mounts)
        raise
    return mounts


def close(kept: Opened) -> None:
    """Unmounts all of it."""
    for _, mounts in kept.mounts.values():
        _close(mounts)
    kept.mounts.clear()


def _close(mounts: list[Any]) -> None:
    for mount in mounts:
        mount.close()
