"""Making the processes of a mesh the ranks of one group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.actor import ProcMesh
from monarch.spmd import _elastic
from monarch.spmd._actor import SPMDActor

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.tools.network import AddrType

__all__ = ["setup_torch_elastic_env", "setup_torch_elastic_env_async"]


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Sets in each process of a mesh, or of a slice, the environment variables that torchrun sets there.

    ``RANK`` and ``WORLD_SIZE`` are those of the mesh as it was passed, its last dimension gives ``LOCAL_RANK`` and
    ``LOCAL_WORLD_SIZE``, the ones before it ``GROUP_RANK`` and ``GROUP_WORLD_SIZE``; ``ROLE_RANK``, ``ROLE_WORLD_SIZE``
    and ``ROLE_NAME`` follow. ``MASTER_ADDR`` and ``MASTER_PORT`` name rank 0, for ``init_process_group()`` there to
    serve: the port is held for it (:meth:`SPMDActor.get_host_port`). Each set-up names another port, so groups of
    disjoint slices stand side by side; a process that is in several knows the last one.

    Blocks until all of them are set. After a failed rank was replaced, set up the new mesh as a whole.

    Args:
        proc_mesh: the ranks.
        master_addr: where rank 0 is to be reached, if that is not for rank 0 to find out.
        master_port: the port to be named. It is not held.
        use_ipaddr: name rank 0 by an address of that kind and not by its host's name; ``RuntimeError`` in rank 0, so
            ``ActorError`` here, if it has none.

    Raises:
        TypeError: for anything but a ``ProcMesh``.
        ValueError: for several ranks in one process (``monarch.testing.local_procs``); for a bad address or port.
        SupervisionError: if one of the processes is dead.
    """
    _start(proc_mesh, master_addr, master_port, use_ipaddr).get()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """As :func:`setup_torch_elastic_env`, to be awaited.

    Args:
        proc_mesh: the ranks.
        master_addr: where rank 0 is to be reached; none: it finds out.
        master_port: the port to be named; none: one that is held.
        use_ipaddr: an address of that kind, not the name of the host.
    """
    await _start(proc_mesh, master_addr, master_port, use_ipaddr)


def _start(procs: ProcMesh, address: str | None, port: int | None, kind: AddrType | None) -> Future[None]:
    from monarch.actor import returns_future

    _check(procs, address, port, kind)
    return returns_future(_set_up)(procs.options(), address, port, kind)


def _check(procs: ProcMesh, address: str | None, port: int | None, kind: AddrType | None) -> None:
    if not isinstance(procs, ProcMesh):
        raise TypeError(f"expected a ProcMesh, as spawn_procs() gives, but got {procs!r}")
    if procs._local and len(procs) > 1:
        raise ValueError(f"{procs!r} is one process, which has one environment: it cannot be {len(procs)} ranks")
    if kind is not None:
        from monarch.tools.network import AddrType

        if not isinstance(kind, AddrType):
            raise TypeError(f"use_ipaddr is one of monarch.tools.network.AddrType, not {kind!r}")
    _elastic.check_master("found-out" if address is None else address, 1 if port is None else port)


async def _set_up(procs: ProcMesh, address: str | None, port: int | None, kind: AddrType | None) -> None:
    actors = procs.spawn("spmd", SPMDActor)
    try:
        if address is None or port is None:
            first = actors.slice(**dict.fromkeys(procs.extent.labels, 0))
            found_address, found_port = await first.get_host_port.call_one(kind)
            address, port = address or found_address, port or found_port
        await actors.setup_env.call(address, port)
    finally:
        actors.stop("the environment is set")
