"""The identities of hosts: whom a worker loop takes itself for, and who attaches means, however it is reached."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence

from monarch._values.identity import ProcId, Uid

__all__ = [
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "deserialize_service_proc_ids",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
]

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
"""The variable that has the identities of all hosts of a job, as :func:`serialize_service_proc_ids` writes them."""

SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"
"""The variable that says which of them is this host's, from 0."""


def new_service_proc_id() -> ProcId:
    """A new identity for a host, random: ``service<2MuAHeDjLCEd>``."""
    return ProcId(Uid.instance("service"))


def serialize_service_proc_ids(ids: Iterable[ProcId]) -> str:
    """As a JSON list of their texts."""
    return json.dumps([str(one) for one in ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """What :func:`serialize_service_proc_ids` gave. ``ValueError`` for any other text."""
    texts = json.loads(serialized)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"the identities of hosts are a JSON list of texts, not {serialized!r}")
    return [ProcId.from_string(text) for text in texts]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """The address of a worker that has this identity, or none: ``service<2MuAHeDjLCEd>@tcp://host:4444``.

    ``ValueError`` for an address that has one already.
    """
    if proc_id is None:
        return address
    if "@" in address.partition("://")[0]:
        raise ValueError(f"{address!r} has an identity already")
    return f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], ids: Sequence[ProcId] | None) -> list[str]:
    """:func:`service_proc_addr` of each. ``ValueError`` where there are not as many identities as addresses."""
    if ids is None:
        return list(addresses)
    if len(addresses) != len(ids):
        raise ValueError(f"got {len(addresses)} worker addresses and {len(ids)} service ProcIds")
    return [service_proc_addr(address, one) for address, one in zip(addresses, ids)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """This host's, of those in ``MONARCH_SERVICE_PROC_IDS``: the one whose number is in the variable ``rank_env``.

    None where there are none. ``ValueError`` where the number is missing, is none, or is that of no host.
    """
    serialized = os.environ.get(SERVICE_PROC_IDS_ENV)
    if not serialized:
        return None
    ids = deserialize_service_proc_ids(serialized)
    rank = os.environ.get(rank_env)
    if rank is None:
        raise ValueError(f"{SERVICE_PROC_IDS_ENV} is set, and {rank_env}, which says which is this host's, is not")
    if not (rank.isascii() and rank.isdigit() and int(rank) < len(ids)):
        raise ValueError(f"{rank_env} must be a number below {len(ids)}, of {SERVICE_PROC_IDS_ENV}, but is {rank!r}")
    return ids[int(rank)]
