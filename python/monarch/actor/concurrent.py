"""``concurrent_endpoint``, the same object as in ``monarch.actor``."""

from monarch._actors.declarations import concurrent_endpoint

__all__ = ["concurrent_endpoint"]
