"""What stands in the place of names of other modules while a simulation lasts, for its own threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch import _core


class Patches:
    """Names that have been replaced, and what they were."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, module: Any, name: str, value: Any) -> None:
        """For all threads."""
        self._before.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def put_for_simulated(self, module: Any, name: str, simulated: Callable[..., Any]) -> None:
        """A function: other threads of the process get the one that was there."""
        of_machine = getattr(module, name)

        def choose(*args: Any, **kwargs: Any) -> Any:
            return (simulated if _core.in_simulation() else of_machine)(*args, **kwargs)

        choose.__name__ = name
        self.put(module, name, choose)

    def restore(self) -> None:
        """All, as they were."""
        while self._before:
            module, name, value = self._before.pop()
            setattr(module, name, value)
