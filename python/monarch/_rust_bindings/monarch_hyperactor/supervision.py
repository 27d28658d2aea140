"""See ``monarch._src``."""

from monarch._errors.exceptions import SupervisionError
from monarch._errors.mesh_failure import MeshFailure

__all__ = ["MeshFailure", "SupervisionError"]
