"""See ``monarch._src``."""

from monarch._errors.exceptions import SupervisionError, UnhandledFaultHookException
from monarch._errors.mesh_failure import MeshFailure
from monarch._running.unhandled import unhandled_fault_hook

__all__ = ["MeshFailure", "SupervisionError", "UnhandledFaultHookException", "unhandled_fault_hook"]
