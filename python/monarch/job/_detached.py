"""Children that may outlive this process."""

from __future__ import annotations

import subprocess


class Detached(subprocess.Popen[str]):
    """A child of which nobody needs to be told that it is left behind."""

    def __del__(self, *_: object, **__: object) -> None:
        pass
