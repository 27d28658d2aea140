"""What bytes travel by: transports, the addresses that a process is bound to, encodings. And ``enable_transport``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["BindSpec", "ChannelTransport", "Encoding", "enable_transport"]


class _Named:
    """One of a few named values, each there once. (Not an ``enum.Enum``: its import would cost every worker 3 ms.)"""

    __slots__ = ("_name",)
    _name: str

    @property
    def name(self) -> str:
        """The member's name, without that of its type."""
        return self._name

    def __init__(self, *_: Any) -> None:
        raise TypeError(f"cannot create '{type(self).__name__}' instances")

    @classmethod
    def _add(cls, *names: str) -> None:
        for name in names:
            member = object.__new__(cls)
            member._name = name
            setattr(cls, name, member)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (type(self), self.name)


class Encoding(_Named):
    """How values are encoded on the wire in the reference system; here there is one codec, so nothing depends on it."""

    __slots__ = ()
    Bincode: Encoding
    Json: Encoding
    Multipart: Encoding


Encoding._add("Bincode", "Json", "Multipart")


class ChannelTransport(_Named):
    """How processes reach each other."""

    __slots__ = ()
    TcpWithLocalhost: ChannelTransport
    TcpWithHostname: ChannelTransport
    MetaTlsWithHostname: ChannelTransport
    MetaTlsWithIpV6: ChannelTransport
    Tls: ChannelTransport
    Quic: ChannelTransport
    MetaQuicWithHostname: ChannelTransport
    MetaQuicWithIpV6: ChannelTransport
    Local: ChannelTransport
    Unix: ChannelTransport
    Tcp: ChannelTransport


ChannelTransport._add(
    "TcpWithLocalhost", "TcpWithHostname", "MetaTlsWithHostname", "MetaTlsWithIpV6", "Tls", "Quic",
    "MetaQuicWithHostname", "MetaQuicWithIpV6", "Local", "Unix",
)  # fmt: skip
ChannelTransport.Tcp = ChannelTransport.TcpWithHostname  # how programs of 2025 spell it

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


# ---- The transport of this process ----

_SHORTCUTS = {
    "ipc": ChannelTransport.Unix,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
}
_THIS_HOST = ("unix", "local")

_enabled: BindSpec | None = None


def enable_transport(transport: ChannelTransport | BindSpec | str) -> None:
    """Says how other processes reach this one. Before anything else of this API, from the main thread.

    ``transport``: what :class:`BindSpec` takes, or ``"ipc"`` (Unix), ``"metatls"``, ``"metatls-hostname"``. The same
    one again changes nothing. ``RuntimeError`` for a different one, and when the runtime of this process has started
    already; ``ValueError`` for a text that names none. For now all processes are on this host, so those that reach
    other hosts raise ``NotImplementedError``.
    """
    global _enabled
    from monarch import _config, _runtime

    spec = BindSpec(_SHORTCUTS.get(transport, transport) if isinstance(transport, str) else transport)
    if _enabled is not None:
        if spec != _enabled:
            raise RuntimeError(
                f"Only one transport type may be enabled at one time. Currently enabled transport type is `{_enabled}`."
                f" Attempted to enable transport type `{spec}`."
            )
        return
    if _runtime.is_started():
        raise RuntimeError(
            "`enable_transport()` must be called before any other calls in the monarch API. The first of them has "
            f"started the runtime of this process with `{BindSpec(ChannelTransport.Unix)}`."
        )
    if str(spec) not in _THIS_HOST:
        raise NotImplementedError(
            f"transport `{spec}` comes with several hosts, which are not there yet; README.md lists what is. The "
            "processes of one host need no other than the default, 'ipc'."
        )
    _config.configure({"default_transport": spec})
    _enabled = spec
