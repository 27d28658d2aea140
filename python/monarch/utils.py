"""An old place of what ``monarch.spmd`` has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch._notices import deprecated

if TYPE_CHECKING:
    from monarch.actor import ProcMesh
    from monarch.tools.network import AddrType

__all__ = ["setup_env_for_distributed"]


async def setup_env_for_distributed(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Old spelling of ``monarch.spmd.setup_torch_elastic_env_async``.

    Args:
        proc_mesh: the ranks.
        master_addr: where rank 0 is to be reached; none: it finds out.
        master_port: the port to be named; none: one that is held.
        use_ipaddr: an address of that kind, not the name of the host.
    """
    from monarch.spmd import setup_torch_elastic_env_async

    deprecated("setup_env_for_distributed() is an old spelling of monarch.spmd.setup_torch_elastic_env_async()")
    await setup_torch_elastic_env_async(proc_mesh, master_addr, master_port, use_ipaddr)
