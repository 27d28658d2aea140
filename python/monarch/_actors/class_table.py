"""The table of an actor class: its methods by number, as both ends of a call derive them."""

from __future__ import annotations

import weakref
from typing import Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import (
    ASYNC,
    CO_ASYNC_GENERATOR,
    CO_GENERATOR,
    CO_VARARGS,
    EXPLICIT_PORT,
    SYNC,
    EndpointProperty,
    is_async,
)
from monarch._values.mesh_trait import MeshTrait

BY_VALUE = ("__main__", "__mp_main__", None)  # modules whose code travels
_ANY_COUNT = 1 << 30


class ClassTable:
    """The methods of an actor class by number, as both ends derive them: endpoints first, then its other methods."""

    native = False

    def __init__(self, cls: type) -> None:
        found = _methods_of(cls)
        endpoints = sorted(name for name, value in found.items() if isinstance(value, EndpointProperty))
        others = sorted(
            name
            for name, value in found.items()
            if not name.startswith("__") and callable(value) and not isinstance(value, (EndpointProperty, type))
        )
        self.names = endpoints + others
        self.endpoints = set(endpoints)
        self.taken: list[str] | None = None  # those that are names of mesh attributes, once known
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.functions: list[tuple[Any, int]] = []
        for name in self.names:
            value = found[name]
            if isinstance(value, EndpointProperty):
                port = EXPLICIT_PORT if value._takes_port else 0
                self.functions.append((value._method, value.kind + port))
            else:
                self.functions.append((value, ASYNC if is_async(value) else SYNC))
        kinds = [kind for (_, kind), name in zip(self.functions, self.names) if name in self.endpoints]
        hooks = [getattr(cls, name, None) for name in _HOOKS]
        # A class without endpoints is an async actor too, as in the reference.
        self.is_async = (
            not kinds or any(kind & ~EXPLICIT_PORT != SYNC for kind in kinds) or any(is_async(hook) for hook in hooks)
        )
        # What its actors run: without a loop there is no way to run coroutines.
        run = self.functions
        if not self.is_async:
            run = [(_no_loop(f, cls), SYNC) if kind & ~EXPLICIT_PORT != SYNC else (f, kind) for f, kind in run]
        self.methods = _core.Methods(run)
        # Code by value comes again with each message, and may have changed: a cell of a notebook that was run again.
        comes_again = code_arrives and cls.__module__ in BY_VALUE
        self._found = {name: found[name] for name in self.names} if comes_again else None
        self.supervises = getattr(cls, "__supervise__", None) is not Actor.__supervise__
        self.class_name = f"{cls.__module__}.{cls.__qualname__}"
        self.ranges = [arity(function, 2 if kind & EXPLICIT_PORT else 1) for function, kind in self.functions]

    def is_of(self, cls: type) -> bool:
        """Whether it still says what ``cls`` has."""
        known = self._found
        if known is None:
            return True
        found = _methods_of(cls)
        return all(found.get(name) is value for name, value in known.items())


def _methods_of(cls: type) -> dict[str, Any]:
    """The attributes of a class and its bases, without those of ``Actor``."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in (object, Actor, MeshTrait):
            found.update(vars(base))
    return found


def _no_loop(function: Any, cls: type) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{cls.__qualname__}.{function.__name__} is async, but the endpoints of {cls.__qualname__} are all sync, "
            "so it has no event loop to run on"
        )

    return refuse


_HOOKS = ("__cleanup__", "__supervise__", "_handle_undeliverable_message")
code_arrives = False  # in a worker; a script has the classes of `__main__` themselves
_tables: weakref.WeakKeyDictionary[type, ClassTable] = weakref.WeakKeyDictionary()
_last: Any = (lambda: None, None)  # who was asked for last, since it mostly is the next one too


def table_of(cls: Any) -> Any:
    """The methods of an actor class: a Python one, or one from ``monarch.cpp.load``."""
    global _last
    last_cls, table = _last
    if last_cls() is cls and (table._found is None or table.is_of(cls)):
        return table
    table = cls.__dict__.get("_native_table")
    if table is not None:
        return table
    table = _tables.get(cls)
    if table is None or not table.is_of(cls):
        table = _tables[cls] = ClassTable(cls)
    _last = weakref.ref(cls), table
    return table


def arity(function: Any, hidden: int = 1) -> tuple[int, int]:
    """How many positional arguments after the hidden ones (self, a response port) are surely right.

    (1, 0) if only a look at the signature can tell.
    """
    if function is object.__init__:
        return 0, 0
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or code.co_kwonlyargcount:
        return 1, 0
    most = code.co_argcount - hidden
    if most < 0:
        return (0, _ANY_COUNT) if code.co_flags & CO_VARARGS else (1, 0)
    least = max(0, most - len(function.__defaults__ or ()))
    return least, _ANY_COUNT if code.co_flags & CO_VARARGS else most


def check_hook(cls: type) -> None:
    """Raises for a ``__supervise__`` that could not be asked, or whose answer would be lost."""
    hook: Any = cls.__supervise__  # type: ignore[attr-defined]
    if hook is Actor.__supervise__:
        return
    what = None
    if isinstance(hook, EndpointProperty):
        what = "an endpoint"
    elif isinstance(hook, type) or not callable(hook):
        what = "a class" if isinstance(hook, type) else f"not callable: {hook!r}"
    elif getattr(getattr(hook, "__code__", None), "co_flags", 0) & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        what = "a generator, whose body would never run"
    else:
        found = next(vars(base)["__supervise__"] for base in cls.__mro__ if "__supervise__" in vars(base))
        hidden = 0 if isinstance(found, staticmethod) else 1
        hook = getattr(hook, "__func__", hook)
        least, most = arity(hook, hidden)
        if not least <= 1 <= most:
            try:
                check_arguments(hook, (None,), {}, hidden)
            except TypeError as error:
                what = f"called with one argument, the MeshFailure, and cannot be ({error})"
            except ValueError:
                pass  # it has no signature: only a call can tell
    if what is not None:
        raise TypeError(
            f"{cls.__qualname__}.__supervise__ is {what}: it must be a method, `def` or `async def`, "
            "__supervise__(self, failure), that returns whether the failure is dealt with"
        )


def check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], hidden: int = 1) -> None:
    """Raises TypeError if a method cannot be called with these arguments (self and a port not among them)."""
    import inspect

    if function is object.__init__:  # its signature claims to take anything
        function = _takes_nothing
    inspect.signature(function).bind(*(None,) * hidden, *args, **kwargs)


def _takes_nothing(self: Any) -> None: ...
