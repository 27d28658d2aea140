"""See ``monarch._src``."""

from monarch._processes.bootstrap import BootstrapCommand

__all__ = ["BootstrapCommand"]
