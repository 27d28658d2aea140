"""See ``monarch._src``."""

from monarch._src import later

_LATER = ("patch_actor", "patch_tensor_engine")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
