"""The logger of jobs, which imports logging when it has something to say: that takes as long as to read a saved job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["logger"]


class _Late:
    def __getattr__(self, name: str) -> Any:
        if name == "info" and "logging" not in sys.modules:
            return lambda *_: None  # nobody can have asked to see that
        try:
            import logging
        except (ImportError, OSError):  # there are no descriptors
            return lambda text, *values: print(text % values, file=sys.stderr)

        return getattr(logging.getLogger("monarch.job"), name)


logger: Logger = _Late()  # type: ignore[assignment]  # all that it is used for
