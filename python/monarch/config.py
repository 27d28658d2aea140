"""Configuration: ``configure``, ``configured``, and what is in force.

Layers, from low to high: defaults; what the process that started this one had configured; what this process configures;
environment variables, which win over the program. ``docs/configuration.md`` lists the keys.
"""

from __future__ import annotations

import contextlib

from monarch import _config
from monarch._transport import Encoding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any, TypeVar

    from typing_extensions import Unpack

    from monarch._config_args import ConfigureArgs

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
    _config.configure(settings)


@contextlib.contextmanager
def configured(**settings: Unpack[ConfigureArgs]) -> Iterator[dict[str, Any]]:
    """Sets keys inside a ``with`` block (or a decorated function); gives :func:`get_global_config`'s dictionary.

    At the end everything is configured as before. It is so for the whole process, so use it from one thread at a time.
    """
    before = _config.configure(settings)
    try:
        yield _config.global_config()
    finally:
        _config.restore(before)


def get_global_config() -> dict[str, Any]:
    """What is in force for each key, the environment included. A copy; durations in their normal spelling."""
    return _config.global_config()


def get_runtime_config() -> dict[str, Any]:
    """What :func:`configure` has set for each key, or else its default; without the environment. A copy."""
    return _config.runtime_config()


def clear_runtime_config() -> None:
    """Forgets what :func:`configure` has set."""
    _config.restore({})


def parametrize_config(**settings: Collection[Any]) -> Callable[[F], F]:
    """A pytest decorator: runs a test once for each combination of the values, configured so.

    ``@parametrize_config(message_ttl_default={1, 64}, enable_log_forwarding={True, False})`` makes four of it.
    The test may be ``async``. ``ValueError`` if a key has no values.
    """
    from monarch import _config_pytest

    return _config_pytest.all_combinations(settings)


def parametrize_config_pointwise(**settings: Sequence[Any]) -> Callable[[F], F]:
    """As :func:`parametrize_config`, by position: first values together, then second values, and so on.

    ``ValueError`` if there are not as many values for each key.
    """
    from monarch import _config_pytest

    return _config_pytest.position_by_position(settings)


def __getattr__(name: str) -> Any:
    if name == "ConfigureArgs":  # needs typing, which nothing else here does
        from monarch._config_args import ConfigureArgs

        return ConfigureArgs
    raise AttributeError(f"module 'monarch.config' has no attribute {name!r}")
