"""Tests that run under several configurations. Imported by the tests that ask for it, as it needs pytest."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from monarch._config import settings as configuration

__all__ = ["all_combinations", "position_by_position"]


def all_combinations(settings: Mapping[str, Collection[Any]]) -> Callable[[Any], Any]:
    values = [_in_order(key, values) for key, values in settings.items()]
    return _run_under([dict(zip(settings, chosen)) for chosen in itertools.product(*values)])


def position_by_position(settings: Mapping[str, Sequence[Any]]) -> Callable[[Any], Any]:
    values = [_in_order(key, values) for key, values in settings.items()]
    counts = {key: len(of_key) for key, of_key in zip(settings, values)}
    if len(set(counts.values())) > 1:
        raise ValueError(f"every key needs as many values as the others, but got {counts}")
    return _run_under([dict(zip(settings, chosen)) for chosen in zip(*values)])


def _in_order(key: str, values: Any) -> list[Any]:
    # Test runners on several processes compare the names of the tests: a set must not come in an order of its own.
    ordered = sorted(values, key=repr) if isinstance(values, (set, frozenset)) else list(values)
    if not ordered:
        raise ValueError(f"{key} has no values")
    return ordered


def _run_under(settings: list[dict[str, Any]]) -> Callable[[Any], Any]:
    names = ["-".join(f"{key}={value}" for key, value in chosen.items()) for chosen in settings]

    def decorate(test: Any) -> Any:
        signature = inspect.signature(test)
        argument = "monarch_config"
        while argument in signature.parameters:  # decorated twice
            argument += "_"
        run = _async_run(test, argument) if inspect.iscoroutinefunction(test) else _run(test, argument)
        extra = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), extra])
        return pytest.mark.parametrize(argument, settings, ids=names)(run)

    return decorate


@contextlib.contextmanager
def _configured(settings: Mapping[str, Any]) -> Iterator[None]:
    before = configuration.configure(settings)
    try:
        yield
    finally:
        configuration.restore(before)


def _run(test: Any, argument: str) -> Any:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _configured(kwargs.pop(argument)):
            return test(*args, **kwargs)

    return run


def _async_run(test: Any, argument: str) -> Any:
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> Any:
        with _configured(kwargs.pop(argument)):
            return await test(*args, **kwargs)

    return run
