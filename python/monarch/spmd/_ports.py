"""Where rank 0 is to be reached: names and addresses of this machine, and ports that nobody else is given.

A held port is a socket that is bound and does not listen. With SO_REUSEADDR on both sides another socket may bind the
same port and listen, which is what torch does; but the system does not choose it, neither for a socket that is bound to
port 0 nor for one that connects. (docs/design/019.)
"""

from __future__ import annotations

import collections
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tools.network import AddrType

__all__ = ["hold_port", "host_address"]

_HELD_MAX = 64
# Owned by the process, as the environment that tells of them is: actors come and go.
_held: collections.deque[socket.socket] = collections.deque(maxlen=_HELD_MAX)


def hold_port() -> int:
    """A free TCP port of all addresses of this machine, held until 64 later ones are, or this process has ended."""
    holder = _bound_socket()
    _held.append(holder)
    return int(holder.getsockname()[1])


def _bound_socket() -> socket.socket:
    if socket.has_ipv6:
        try:
            return _bind(socket.AF_INET6, "::")
        except OSError:
            pass  # the system has been told to do without
    return _bind(socket.AF_INET, "")


def _bind(family: int, address: str) -> socket.socket:
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((address, 0))
    except BaseException:
        holder.close()
        raise
    return holder


def host_address(kind: AddrType | None) -> str:
    """How others reach this machine: by the name of the host, or by an address of that ``kind``."""
    name = socket.gethostname()
    if kind is not None:
        from monarch.tools.network import get_ipaddr

        return get_ipaddr(name, 0, kind)
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return _outward_address()
    return name


def _outward_address() -> str:
    """The address that this machine would send from; nothing is sent. Without a network, that of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address of nobody
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
