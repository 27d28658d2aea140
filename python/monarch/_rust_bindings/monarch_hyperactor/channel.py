"""See ``monarch._src``."""

from monarch._src import later
from monarch._transport import BindSpec, ChannelTransport

__all__ = ["BindSpec", "ChannelTransport"]

_LATER = ("ChannelAddr",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
