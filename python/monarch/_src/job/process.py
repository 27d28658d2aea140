"""See ``monarch._src``."""

from monarch.job import ProcessJob

__all__ = ["ProcessJob"]
