"""What the configuration says of transports: how processes reach each other, where they are bound, encodings."""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["BindSpec", "ChannelTransport", "Encoding"]


class Encoding(enum.Enum):
    """How values are encoded on the wire in the reference system; here there is one codec, so nothing depends on it."""

    Bincode = 0
    Json = 1
    Multipart = 2

    def __int__(self) -> int:
        return self.value

    __repr__ = enum.Enum.__str__


class ChannelTransport(enum.Enum):
    """How processes reach each other."""

    TcpWithLocalhost = 0
    TcpWithHostname = 1
    MetaTlsWithHostname = 2
    MetaTlsWithIpV6 = 3
    Tls = 4
    Quic = 5
    MetaQuicWithHostname = 6
    MetaQuicWithIpV6 = 7
    Local = 8
    Unix = 9
    Tcp = TcpWithHostname  # how programs of 2025 spell it

    def get(self) -> ChannelTransport:
        """The member itself."""
        return self

    def __int__(self) -> int:
        return self.value

    __repr__ = enum.Enum.__str__


# The text of a bind spec that is a transport alone. "tcp" is accepted besides.
_TEXTS = {
    ChannelTransport.TcpWithLocalhost: "tcp(Localhost)",
    ChannelTransport.TcpWithHostname: "tcp(Hostname)",
    ChannelTransport.MetaTlsWithHostname: "metatls(Hostname)",
    ChannelTransport.MetaTlsWithIpV6: "metatls(IpV6)",
    ChannelTransport.Tls: "tls",
    ChannelTransport.Quic: "quic",
    ChannelTransport.MetaQuicWithHostname: "metaquic(Hostname)",
    ChannelTransport.MetaQuicWithIpV6: "metaquic(IpV6)",
    ChannelTransport.Local: "local",
    ChannelTransport.Unix: "unix",
}
_SPECS = {**{text: text for text in _TEXTS.values()}, "tcp": "tcp(Hostname)"}
_URL_SCHEMES = {"ipc": "unix", "inproc": "local", **{s: s for s in ("tcp", "tls", "quic", "metatls", "metaquic")}}
_SCHEMES = set(_URL_SCHEMES.values())


class BindSpec:
    """Where a process is bound: a transport, whose address is chosen for it, or one address.

    ``spec`` is a ``ChannelTransport``, another bind spec, or a text: ``"tcp"``, ``"unix"``, ``"local"``, ``"tls"``,
    ``"quic"``, what ``str()`` of a bind spec gives (``"tcp(Hostname)"``), or an address (``"tcp://127.0.0.1:8080"``,
    ``"ipc:///run/x"``, ``"ipc://@abstract"``, ``"inproc://3"``). Names of hosts are not looked up.
    ``ValueError`` for another text, ``TypeError`` for another type. Immutable, hashable, picklable.
    """

    __slots__ = ("_text",)

    def __init__(self, spec: ChannelTransport | BindSpec | str) -> None:
        if isinstance(spec, ChannelTransport):
            self._text = _TEXTS[spec]
        elif isinstance(spec, BindSpec):
            self._text = spec._text
        elif isinstance(spec, str):
            text = _SPECS.get(spec) or _address(spec)
            if text is None:
                raise ValueError(f"invalid str for BindSpec '{spec}': invalid bind spec: {spec}")
            self._text = text
        else:
            raise TypeError("expected ChannelTransport enum, BindSpec, or str")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"BindSpec({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BindSpec) and self._text == other._text

    def __hash__(self) -> int:
        return hash((BindSpec, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return BindSpec, (self._text,)


def _address(text: str) -> str | None:
    """``scheme:rest`` of an address in either notation, None if it is none."""
    scheme, separator, rest = text.partition("://")
    if separator:
        scheme = _URL_SCHEMES.get(scheme, "")
    else:
        scheme, _, rest = text.partition(":")
    if scheme not in _SCHEMES:
        return None
    if scheme == "unix":
        return f"unix:{rest}" if rest else None
    if scheme == "local":
        return f"local:{int(rest)}" if _is_number(rest) else None
    host, _, port = rest.rpartition(":")
    if not _is_host(host) or not _is_number(port) or int(port) > 65535:
        return None
    return f"{scheme}:{'[::]' if host == '*' else host}:{int(port)}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _is_host(text: str) -> bool:
    if text.startswith("[") and text.endswith("]"):
        return len(text) > 2
    return bool(text) and not any(character in ":/@[]" or character.isspace() for character in text)
