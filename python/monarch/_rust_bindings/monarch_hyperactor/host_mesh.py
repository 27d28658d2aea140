"""See ``monarch._src``."""

from monarch._bootstrap import BootstrapCommand

__all__ = ["BootstrapCommand"]
