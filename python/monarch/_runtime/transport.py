"""How other processes reach this one."""

from __future__ import annotations

from monarch._config import settings
from monarch._config.transports import BindSpec, ChannelTransport
from monarch._runtime import runtime

__all__ = ["enable_transport"]

_SHORTCUTS = {
    "ipc": ChannelTransport.Unix,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
}
_MISSING = ("metatls", "metaquic", "quic")

_enabled: BindSpec | None = None


def enable_transport(transport: ChannelTransport | BindSpec | str) -> None:
    """Says how other processes reach this one. Before anything else of this API, from the main thread.

    ``transport``: ``"tcp"``, ``"tls"``, ``"ipc"`` (Unix), ``"local"``, a member, or an address
    (``"tcp://127.0.0.1:8080"``). The same one again changes nothing. ``RuntimeError`` for a different one, and when the
    runtime of this process has started already; ``ValueError`` for a text that names none. ``NotImplementedError`` for
    transports that are not there: ``"metatls"``, ``"metatls-hostname"``, those of QUIC.

    It sets the configuration's ``default_transport``. Nothing else depends on it: processes of one host use shared
    memory, hosts are reached at the addresses that ``attach_to_workers`` is given, over TCP always with TLS, and nobody
    connects to a script.
    """
    global _enabled
    spec = BindSpec(_SHORTCUTS.get(transport, transport) if isinstance(transport, str) else transport)
    if _enabled is not None:
        if spec != _enabled:
            raise RuntimeError(
                f"Only one transport type may be enabled at one time. Currently enabled transport type is `{_enabled}`."
                f" Attempted to enable transport type `{spec}`."
            )
        return
    if runtime.is_started():
        raise RuntimeError(
            "`enable_transport()` must be called before any other calls in the monarch API. The first of them has "
            f"started the runtime of this process with `{BindSpec(ChannelTransport.Unix)}`."
        )
    if str(spec).startswith(_MISSING):
        raise NotImplementedError(
            f"transport `{spec}` is not there; README.md lists what is. Hosts over a network are reached by TCP, with "
            "TLS: 'tcp' or 'tls'."
        )
    settings.configure({"default_transport": spec})
    _enabled = spec
