"""Memory of one process that others read and write without asking it: buffers, and operations on many of them."""

from __future__ import annotations

import monarch._wiring  # noqa: F401
from monarch._bulk.action import RDMAAction
from monarch._bulk.buffer import RDMABuffer, backend, has_nic, prepare
from monarch._bulk.errors import (
    BufferDropped,
    RDMAError,
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMATimeout,
    RDMAWriteTransferWarning,
)
from monarch._notices import deprecated
from monarch._public import publish
from monarch._values.frozen import empty
from monarch._values.torch_allocator import torch_allocator

__all__ = [
    "BufferDropped",
    "RDMAAction",
    "RDMABuffer",
    "RDMAError",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMATimeout",
    "RDMAWriteTransferWarning",
    "empty",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
    "torch_allocator",
]


def is_ibverbs_available() -> bool:
    """Whether buffers go over a NIC by verbs between hosts, where both have one.

    So they do with UCX installed, and ``configure(rdma_encrypt=False)``: a NIC does not encipher.
    """
    return has_nic()


def get_rdma_backend() -> str:
    """How buffers go between hosts: ``"ibverbs"``, ``"tcp"``, or ``"none"`` where ``rdma_allow_tcp_fallback`` is False.

    On one host nothing goes over a network.
    """
    return backend()


def is_rdma_available() -> bool:
    """Deprecated. Whether one-sided buffers work: they do everywhere."""
    deprecated("is_rdma_available() is deprecated: use is_ibverbs_available() or get_rdma_backend()")
    return True


prepare()
publish(__name__, {name: globals()[name] for name in __all__ if name != "empty"})
