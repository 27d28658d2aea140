"""Addresses of machines, as others reach them by TCP."""

from __future__ import annotations

import enum
import socket

__all__ = ["AddrType", "get_ipaddr", "get_sockaddr"]


class AddrType(enum.Enum):
    """Which address of a host is wanted."""

    Default = 1
    """IPv6, or IPv4 where there is none."""
    IPv4 = 2
    IPv6 = 3


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def get_sockaddr(hostname: str, port: int) -> str:
    """``address:port`` with an IPv4 address, ``[address]:port`` with an IPv6 one, which is preferred.

    ``RuntimeError`` if the name has no address.
    """
    address = get_ipaddr(hostname, port)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """The address of a host, without brackets; ``RuntimeError`` if the name has none of that kind."""
    for family in _FAMILIES[addr_type]:
        try:
            found = socket.getaddrinfo(hostname, port, family=family, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError):  # the second: no name of a host at all
            continue
        return str(found[0][4][0])
    raise RuntimeError(
        f"Unable to resolve `{hostname}` to ipv6 or ipv4 address that can bind TCP socket. "
        "Check the network configuration on the host."
    )
