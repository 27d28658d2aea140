"""See ``monarch._src``."""

from monarch._errors.exceptions import SupervisionError
from monarch._src import later

__all__ = ["SupervisionError"]

_LATER = ("MeshFailure",)


def __getattr__(name: str):
    return later(__name__, name, _LATER)
