"""See ``monarch._src``."""

from monarch._src import later

_LATER = ("Handle", "WouldBlockRuntime")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
