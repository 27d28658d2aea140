"""Where tools keep what is to outlast a script."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["MONARCH_HOME"]


def MONARCH_HOME(*sub: str) -> Path:
    """A folder below ``$MONARCH_HOME``, else below ``~/.monarch``; made if missing, for this user alone."""
    folder = Path(os.environ.get("MONARCH_HOME") or Path.home() / ".monarch").joinpath(*sub)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
