"""``concurrent_endpoint``, the same object as in ``monarch.actor``."""

from monarch._endpoint import concurrent_endpoint

__all__ = ["concurrent_endpoint"]
