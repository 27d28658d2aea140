"""See ``monarch._src``."""

from monarch._src import later

_LATER = ("flatten", "torch_dump", "torch_loads", "unflatten")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
