"""The environment variables of torchrun."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.actor import Point

__all__ = ["check_master", "set_variables", "variables"]

ROLE_NAME = "rank"
# Of a torchrun around the script: it tells rank 0 that somebody else serves the store.
FOREIGN = ("TORCHELASTIC_USE_AGENT_STORE",)


def check_master(address: str, port: int) -> None:
    if not isinstance(address, str) or not address or address.split() != [address]:
        raise ValueError(f"master_addr is {address!r}: expected the name or the address of a host")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 2**16:
        raise ValueError(f"master_port is {port!r}: expected a number from 1 to 65535")


def variables(place: Point, address: str, port: int) -> dict[str, str]:
    """Those of the member at ``place`` of its mesh, by name. Without dimensions it is the only one."""
    labels = place.extent.labels
    local_rank = place[labels[-1]] if labels else 0
    local_size = place.extent[labels[-1]] if labels else 1
    numbers = {
        "RANK": place.rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": place.extent.nelements,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": place.rank // local_size,
        "GROUP_WORLD_SIZE": place.extent.nelements // local_size,
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.extent.nelements,
        "MASTER_PORT": int(port),
    }
    return {name: str(number) for name, number in numbers.items()} | {"ROLE_NAME": ROLE_NAME, "MASTER_ADDR": address}


def set_variables(place: Point, address: str, port: int) -> None:
    """In this process."""
    check_master(address, port)
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(variables(place, address, port))
