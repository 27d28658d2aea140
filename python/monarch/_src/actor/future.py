"""See ``monarch._src``."""

from monarch._calls.future import Future
from monarch._src import later

__all__ = ["Future"]

_LATER = ("returns_future",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
