"""See ``monarch._src``."""

from monarch._meshes.launchers import LaunchOptions, ProcExitResult, ProcLauncher

__all__ = ["LaunchOptions", "ProcExitResult", "ProcLauncher"]
