"""Whether anything is configured, for those who would not load the configuration as long as nothing is."""

from __future__ import annotations

from collections.abc import Callable

changed = False  # by this process, or by the one that has started it; the environment is not looked at
listeners: list[Callable[[], None]] = []  # called after each change
