"""Every public name has a docstring, and every public method and property of a public class."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch
import monarch.actor
from monarch import _core
from monarch.actor import Accumulator, ActorError

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
    if isinstance(value, type):  # an iterator, which nanobind makes with the first iteration
        return False
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


def functions_with_many_parameters() -> Iterator:
    """(docstring, parameters) of public functions and methods with three or more, and of what programs construct."""
    seen = set()
    for module in map(importlib.import_module, PUBLIC):
        for owner in (getattr(module, name) for name in module.__all__):
            members = [vars(base).items() for base in getattr(owner, "__mro__", ())]
            methods = {name: value for items in members for name, value in items if name[0] != "_"}
            for value in [owner, *methods.values()]:
                value = getattr(value, "__func__", value)  # of a class method
                if inspect.isfunction(value) and value.__module__.startswith("monarch") and value not in seen:
                    seen.add(value)
                    yield value.__qualname__, value.__doc__, inspect.signature(value)
    for cls in (ActorError, Accumulator):
        yield cls.__name__, cls.__doc__, inspect.signature(cls)


def test_three_or_more_parameters_have_a_table():
    missing = []
    for name, docstring, signature in functions_with_many_parameters():
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        parameters = [
            stars.get(p.kind, "") + p.name for p in signature.parameters.values() if p.name not in ("self", "cls")
        ]
        table = docstring.partition("Args:\n")[2]
        if len(parameters) >= 3:
            missing += [f"{name}: {one}" for one in parameters if f"    {one}: " not in table]
    assert not missing, "\n".join(missing)


def test_the_stub_has_what_the_extension_has():
    for name, node in STUB_CLASSES.items():
        if name.endswith("Base"):
            continue  # the classes of the package that stand on it say what it has
        members = vars(getattr(_core, name)).items()
        runtime = {name for name, value in members if name[0] != "_" and not isinstance(value, type)}
        assert {name for name in documented_in(node.body) if name[0] != "_"} == runtime


def words(text: str | None) -> list[str]:
    return (text or "").split()


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (monarch.actor.Future, ["get", "result"]),
        (monarch.actor.Endpoint, ["call", "call_one", "broadcast"]),
        (monarch.actor.Port, ["send", "exception"]),
    ],
)
def test_what_is_native_says_at_run_time_what_the_documentation_says(cls, names):
    documented = class_docstrings(cls)
    for name in names:
        found = getattr(cls, name)
        assert words(found.__doc__) == words(documented[name])
        assert list(inspect.signature(found).parameters)[0] == "self"


@pytest.mark.parametrize("name", ["Extent", "Point", "Slice", "Region", "Shape"])
def test_native_classes_say_what_they_are(name):
    assert words(getattr(_core, name).__doc__) == words(ast.get_docstring(STUB_CLASSES[name]))
