"""See ``monarch._src``."""

from monarch.job import SlurmJob

__all__ = ["SlurmJob"]
