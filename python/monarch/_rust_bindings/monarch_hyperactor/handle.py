"""See ``monarch._src``."""

from monarch._errors.exceptions import WouldBlockRuntime
from monarch._src import later

__all__ = ["WouldBlockRuntime"]

_LATER = ("Handle",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
