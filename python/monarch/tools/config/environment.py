"""``CondaEnvironment``, under the name of its own module."""

from monarch.tools.config import CondaEnvironment

__all__ = ["CondaEnvironment"]
