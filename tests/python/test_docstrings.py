"""Every public name has a docstring, and every public method and property of a public class."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch
from monarch import _core

FOLDER = Path(monarch.__file__).parent
MISSING = {file.stem for file in FOLDER.glob("*.py") if file.read_text().startswith('"""Not there yet."""')}
OLD = {"actor_mesh", "bootstrap_main", "proc_mesh", "service"}  # they re-export, and warn
NAMES = {file.stem for file in FOLDER.glob("[!_]*.py")} | {
    file.parent.name for file in FOLDER.glob("[!_]*/__init__.py")
}
PUBLIC = ["monarch", *(f"monarch.{name}" for name in sorted(NAMES - OLD - MISSING))]
# Classes of the extension have theirs in the stub.
STUB = ast.parse((FOLDER / "_core.pyi").read_text())
STUB_CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def public_objects() -> Iterator:
    seen = set()
    for module in map(importlib.import_module, PUBLIC):
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield pytest.param(value, id=f"{module.__name__}.{name}")


def documented_in(body: list[ast.stmt]) -> dict[str, str | None]:
    """Name -> docstring of the functions of a class, those for type checkers only among them."""
    found: dict[str, str | None] = {}
    for node in body:
        if isinstance(node, ast.If):
            found |= documented_in(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = ast.get_docstring(node)
    return found


def public_members(cls: type) -> set[str]:
    """What a user of the class sees of it, and neither Python nor a library has brought."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("monarch")]
    return {name for base in ours for name in vars(base) if name[0] != "_" and callable_or_property(vars(base)[name])}


def callable_or_property(value: object) -> bool:
    return (
        callable(value) or isinstance(value, (property, classmethod, staticmethod)) or inspect.isdatadescriptor(value)
    )


def is_native(cls: type) -> bool:
    return getattr(_core, cls.__name__, None) is cls


CLASSES = {
    node.name: node
    for file in FOLDER.rglob("*.py")
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.ClassDef)
}


def class_docstrings(cls: type) -> dict[str, str | None]:
    """Name -> docstring, of the nearest class that defines it."""
    found: dict[str, str | None] = {}
    for base in reversed(cls.__mro__):
        if is_native(base) and base.__name__ in STUB_CLASSES:
            found |= documented_in(STUB_CLASSES[base.__name__].body)
        elif base.__module__.startswith("monarch"):
            found |= {name: value.__doc__ for name, value in vars(base).items()}
            if base.__name__ in CLASSES:
                found |= documented_in(CLASSES[base.__name__].body)
    return found


@pytest.mark.parametrize("value", list(public_objects()))
def test_a_public_name_has_a_docstring(value):
    if not isinstance(value, type):
        assert not callable(value) or inspect.getdoc(value)
        return
    if is_native(value) and value.__name__ in STUB_CLASSES:
        assert ast.get_docstring(STUB_CLASSES[value.__name__])
    else:
        assert value.__doc__ or value is _core.Context  # which is described for type checkers only
    docstrings = class_docstrings(value)
    assert sorted(name for name in public_members(value) if not docstrings.get(name)) == []


def test_the_stub_has_what_the_extension_has():
    for name, node in STUB_CLASSES.items():
        if name.endswith("Base"):
            continue  # the classes of the package that stand on it say what it has
        runtime = {name for name in vars(getattr(_core, name)) if name[0] != "_"}
        assert {name for name in documented_in(node.body) if name[0] != "_"} == runtime
