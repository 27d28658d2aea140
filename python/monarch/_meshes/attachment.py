"""``attach()``: a script that is outside of its cluster (``src/monarch/host/start/relay.h``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from monarch import _core
from monarch._meshes.worker_addresses import Address, certificates_of, parsed, token_file, warn_of_trust
from monarch._runtime import runtime

if TYPE_CHECKING:
    from monarch._meshes.worker_addresses import Ca, Key

__all__ = ["attach"]

_lock = threading.Lock()
_way: Address | None = None


def attach(addr: str, *, private_key: Key = None, ca: Ca = None) -> None:
    """Says by which host this script reaches its cluster, of which it can reach no other. Before anything else.

    A ``monarch worker``, or any worker loop, listens at ``addr``. From now on the hosts that ``attach_to_workers`` is
    given are connected to from there, so their addresses, names too, are those that are valid there; nobody connects to
    this script. ``this_host()`` is still this machine.

    Returns at once; that nobody listens there, or has the same token, is said by what is done with the hosts. The same
    address again changes nothing. ``RuntimeError`` for another one, and where the runtime of this process has started
    already; ``ValueError`` for what is no address of TCP.

    Args:
        addr: ``tcp://HOST:PORT``, ``tls://HOST:PORT``; with ``IDENTITY@`` in front, the host that is meant.
        private_key: as in :func:`attach_to_workers`, for the connection to this one.
        ca: as there.
    """
    attach_by(addr, token_file(), private_key=private_key, ca=ca)


def attach_by(addr: str, token_in: str, *, private_key: Key = None, ca: Ca = None) -> None:
    """As :func:`attach`, with the token in that file."""
    global _way
    address = parsed(addr)
    if not address.is_tcp:
        raise ValueError(
            f"the way into a cluster is an address of TCP such as 'tcp://host:4444', but is {addr!r}; what runs on "
            "this machine is attached to without one"
        )
    certificates = certificates_of(private_key, ca, True)
    trusts_all = ca is not None and not certificates[0]
    _core.check_hosts([address.url], trusts_all, *certificates)
    with _lock:
        if _way is not None:
            if _way != address:
                raise RuntimeError(
                    f"client is already attached through {_way.url}, not {address.url}; detaching is not supported, "
                    "a script has one way into its cluster"
                )
            return
        if runtime.is_started():
            raise RuntimeError(
                f"client was initialized without a remote attachment; call attach({addr!r}) before anything else of "
                "the monarch API"
            )
        _core.go_through(address.url, token_in, trusts_all, *certificates)
        _way = address
    if trusts_all:
        warn_of_trust()
