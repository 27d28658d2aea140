"""What public modules have in common: names that load when they are asked for, and objects that say where they are."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from monarch._notices import not_yet


def publish(module: str, objects: Mapping[str, Any]) -> None:
    """Has what has these names in ``module`` say that it is from there, and not from the private module behind it."""
    for name, value in objects.items():
        home = getattr(value, "__module__", None) or ""
        if home.startswith("monarch._") and getattr(value, "__qualname__", "") == name:
            try:
                value.__module__ = module
            except (AttributeError, TypeError):
                pass  # an instance, or a type of the interpreter's


def load(namespace: dict[str, Any], name: str, lazy: dict[str, str], missing: Iterable[str] = ()) -> Any:
    """For ``__getattr__`` of a module: one of the names in ``lazy``, from the private module that it maps to.

    ``missing`` are names of later versions: a program that uses one is told so.
    """
    module = namespace["__name__"]
    if name in lazy:
        found = namespace[name] = getattr(importlib.import_module(f"monarch.{lazy[name]}"), name)
        publish(module, {name: found})
        return found
    if name in missing:
        raise not_yet(f"{module}.{name}")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
