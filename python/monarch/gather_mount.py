"""Directories of hosts, to be read on the client."""

from __future__ import annotations

import monarch._wiring  # noqa: F401
from monarch._mounts.gather import GatherMount, gather_mount
from monarch._public import publish

__all__ = ["GatherMount", "gather_mount"]

publish(__name__, {name: globals()[name] for name in __all__})
