"""Deprecated: what is left here of earlier versions is in :mod:`monarch.rdma`."""

from __future__ import annotations

from typing import Any

from monarch._notices import deprecated, not_yet
from monarch.rdma import RDMABuffer, RDMAReadTransferWarning, RDMAWriteTransferWarning

__all__ = ["RDMABuffer", "RDMAReadTransferWarning", "RDMAWriteTransferWarning", "is_available"]


def is_available() -> bool:
    """Whether ``RDMABuffer`` works: it does everywhere."""
    return True


deprecated("monarch.tensor_engine is deprecated: RDMABuffer is in monarch.rdma", stacklevel=2)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise not_yet(f"{__name__}.{name}")
