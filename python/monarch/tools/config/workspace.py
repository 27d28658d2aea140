"""``Workspace``, under the name of its own module."""

from monarch.tools.config import Workspace

__all__ = ["Workspace"]
