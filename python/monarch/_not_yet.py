"""What later versions bring: named, so that a program that uses it is told so and not left to guess."""

from __future__ import annotations


class NotYetError(NotImplementedError, AttributeError):
    """Of a name: ``hasattr`` is False, ``getattr`` takes its default, and to import it is an ``ImportError``."""


class ModuleNotYetError(NotImplementedError, ModuleNotFoundError):
    """Of a module: programs that try an import and go on without it do so."""


def not_yet(name: str) -> NotYetError:
    return NotYetError(f"{name} is not there yet; README.md lists what is.")


def module_not_yet(name: str) -> ModuleNotYetError:
    error = ModuleNotYetError(f"{name} is not there yet; README.md lists what is.")
    error.name = name
    return error
