"""What a program is told about names: that one is not there yet, or that it is an old spelling."""

from __future__ import annotations

import warnings


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


def deprecated(text: str, stacklevel: int = 3) -> None:
    """Warns whoever has called the caller of this."""
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def deprecated_module(name: str) -> None:
    """Warns whoever imports the module that calls this."""
    deprecated(f"{name} is deprecated, please import from monarch.actor instead.", stacklevel=4)
