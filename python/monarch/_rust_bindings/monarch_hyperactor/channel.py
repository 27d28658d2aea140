"""See ``monarch._src``."""

from monarch._src import later

_LATER = ("BindSpec", "ChannelAddr", "ChannelTransport")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
