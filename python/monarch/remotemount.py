"""Directories of the client, to be read on hosts."""

from __future__ import annotations

import monarch._wiring  # noqa: F401
from monarch._mounts.remote import RemoteMount, remotemount
from monarch._public import publish

__all__ = ["RemoteMount", "remotemount"]

publish(__name__, {name: globals()[name] for name in __all__})
