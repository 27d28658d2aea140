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
    if str(spec) not in _THIS_HOST:
        raise NotImplementedError(
            f"transport `{spec}` comes with several hosts, which are not there yet; README.md lists what is. The "
            "processes of one host need no other than the default, 'ipc'."
        )
    settings.configure({"default_transport": spec})
    _enabled = spec
