"""Configuration: ``configure``, ``configured``, and what is in force.

Layers, from low to high: defaults; what the process that started this one had configured; what this process configures;
environment variables, which win over the program. ``docs/configuration.md`` lists the keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch._config import settings as _settings
from monarch._config.arguments import ConfigureArgs
from monarch._config.transports import Encoding
from monarch._public import publish

if TYPE_CHECKING:
    from typing_extensions import Unpack

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "ConfigureArgs",
    "Encoding",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "parametrize_config",
    "parametrize_config_pointwise",
]


def configure(**settings: Unpack[ConfigureArgs]) -> None:
    """Sets keys for this process, and for those that it starts from now on.

    Durations are text such as ``"10s"`` or ``"1h 30m"``. All values are checked before any is set: ``ValueError`` for a
    key that does not exist, ``TypeError`` for a value of another type, a text that is no duration, or a key that only
    the environment sets. Any thread may call it.
    """
    _settings.configure(settings)


@contextlib.contextmanager
def configured(**settings: Unpack[ConfigureArgs]) -> Iterator[dict[str, Any]]:
    """Sets keys inside a ``with`` block (or a decorated function); gives :func:`get_global_config`'s dictionary.

    At the end everything is configured as before. It is so for the whole process, so use it from one thread at a time.
    """
    before = _settings.configure(settings)
    try:
        yield _settings.global_config()
    finally:
        _settings.restore(before)


def get_global_config() -> dict[str, Any]:
    """What is in force for each key, the environment included. A copy; durations in their normal spelling."""
    return _settings.global_config()


def get_runtime_config() -> dict[str, Any]:
    """What :func:`configure` has set for each key, or else its default; without the environment. A copy."""
    return _settings.runtime_config()


def clear_runtime_config() -> None:
    """Forgets what :func:`configure` has set."""
    _settings.restore({})


def parametrize_config(**settings: Collection[Any]) -> Callable[[F], F]:
    """A pytest decorator: runs a test once for each combination of the values, configured so.

    ``@parametrize_config(message_ttl_default={1, 64}, enable_log_forwarding={True, False})`` makes four of it.
    The test may be ``async``. ``ValueError`` if a key has no values.
    """
    from monarch._config import pytest_plugin

    return pytest_plugin.all_combinations(settings)


def parametrize_config_pointwise(**settings: Sequence[Any]) -> Callable[[F], F]:
    """As :func:`parametrize_config`, by position: first values together, then second values, and so on.

    ``ValueError`` if there are not as many values for each key.
    """
    from monarch._config import pytest_plugin

    return pytest_plugin.position_by_position(settings)


publish(__name__, {name: globals()[name] for name in __all__})
