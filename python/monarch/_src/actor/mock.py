"""See ``monarch._src``."""

from monarch._src import later
from monarch.testing import patch_actor

__all__ = ["patch_actor"]

_LATER = ("patch_tensor_engine",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
