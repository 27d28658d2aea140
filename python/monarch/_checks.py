"""Checks of arguments, with words that say what is expected."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def names_options(function: F) -> F:
    """Decorates a method that takes options by name: for a name that it does not know it says which there are."""

    @functools.wraps(function)
    def checked(self: Any, *args: Any, **given: Any) -> Any:
        if unknown := [name for name in given if name not in known]:
            raise TypeError(f"{function.__qualname__}() has no option {unknown[0]!r}, but {' and '.join(known)}")
        return function(self, *args, **given)

    known = tuple(function.__kwdefaults__ or ())
    return cast(F, checked)


def check_text(what: str, value: Any) -> None:
    """Raises unless ``value``, an argument that is described by ``what``, is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, but is {value!r}")


def check_sizes(what: str, sizes: Any, member: str) -> None:
    """Raises unless ``sizes`` maps names of dimensions to positive sizes."""
    if not isinstance(sizes, dict):
        raise TypeError(f"{what} must be a dict of names and sizes such as {{'gpus': 8}}, but is {sizes!r}")
    for label, size in sizes.items():
        if not isinstance(label, str):
            raise TypeError(f"{what} must map names to sizes, but has the name {label!r}")
        if not hasattr(size, "__index__"):
            raise TypeError(f"{what} must map names to sizes, but {label!r} has the size {size!r}")
        if size <= 0:
            raise ValueError(f"{what}[{label!r}] is {size}: a mesh needs at least one {member} along each dimension")
