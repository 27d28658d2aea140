"""See ``monarch._src``."""

from monarch._config.transports import BindSpec, ChannelTransport
from monarch._src import later

__all__ = ["BindSpec", "ChannelTransport"]

_LATER = ("ChannelAddr",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
