"""Pickling for messages: protocol 5, out-of-band buffers, code of ``__main__`` by value (cloudpickle)."""

from __future__ import annotations

import io
import pickle
import sys
from abc import ABCMeta
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from monarch._actors.class_table import BY_VALUE
from monarch._calls import versions
from monarch._calls.handles import Handle
from monarch._values import frozen


class _HasCode(Exception):
    """Something must travel by value: cloudpickle's work."""


class _FastPickler(pickle.Pickler):
    """The C pickler, which stops at code that the receiver cannot import. Most messages have none."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        self.buffers: list[Any] = []
        self.storages: dict[int, Any] = {}  # of tensors: each once, so that what is shared stays shared
        super().__init__(self.file, protocol=5, buffer_callback=self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)):
            if value.__module__ in BY_VALUE or _some_modules_by_value():
                raise _HasCode
            return NotImplemented
        if isinstance(value, Handle):
            return value._reduce_in_message()
        return _reduce_memory(value, self.storages)


_code_pickler: Any = None


def _make_code_pickler() -> Any:
    global _code_pickler
    import cloudpickle

    if "__mp_main__" in sys.modules:  # the script itself, in a child that multiprocessing has spawned
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])

    class Pickler(versions.code_pickler(cloudpickle)):  # type: ignore[misc]
        def __init__(self, in_band: bool = False) -> None:
            self.file = io.BytesIO()
            self.buffers: list[Any] = []
            self.storages: dict[int, Any] = {}
            super().__init__(self.file, protocol=5, buffer_callback=None if in_band else self.buffers.append)

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, Handle):
                return value._reduce_in_message()
            reduced = _reduce_memory(value, self.storages)
            if reduced is NotImplemented:
                reduced = super().reducer_override(value)
            if isinstance(value, type) and isinstance(reduced, tuple) and len(reduced) == 6:
                if value not in _arrived:
                    _own.add(value)
                return (*reduced[:5], _set_class_state)
            return reduced

    _code_pickler = Pickler
    return Pickler


def _reduce_memory(value: Any, storages: dict[int, Any]) -> Any:
    """How values that are a piece of memory travel beside the pickle; NotImplemented for others."""
    if type(value) is memoryview:
        return (
            (_memoryview, (pickle.PickleBuffer(value), value.format, value.shape))
            if value.contiguous
            else (_memoryview, (value.tobytes(), value.format, value.shape))
        )
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is getattr(numpy, "ndarray", None) and not value.flags.writeable:
        return frozen.reduce(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        from monarch._calls import tensors

        return tensors.reduce(torch, value, storages)
    return NotImplemented


def _memoryview(buffer: Any, format: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(buffer).cast("B")
    return flat if format == "B" and len(shape) == 1 else flat.cast(format, shape)  # type: ignore[call-overload]


# What is pickled, for the words about what cannot be: bindings/python/codec.h, Contents
MESSAGE, CALL, SPAWN, RESULT = 0, 1, 2, 3
# Errors whose text may be another one: they are made of a text and nothing else.
_OF_A_TEXT = frozenset({"TypeError", "AttributeError", "ValueError", "RuntimeError", "RecursionError", "PicklingError"})


def dumps(value: Any, contents: int = MESSAGE) -> tuple[Any, list[Any]]:
    """The pickle of ``value`` and its buffers. What cannot be pickled raises, and the text names where it sits.

    An exception that is not pickle's, but was raised by the value, comes as it is.
    """
    try:
        return _dump(_FastPickler(), value)
    except Exception:
        pass  # code, or what plain pickle cannot do: cloudpickle has the last word, and the better text
    if contents == SPAWN and (apart := _with_class_apart(value)) is not None:
        return apart
    try:
        return _dump((_code_pickler or _make_code_pickler())(), value)
    except BufferError:  # a buffer that is not contiguous: in band then
        return dumps_code(value), []
    except Exception as error:
        kind = type(error)
        if kind.__name__ not in _OF_A_TEXT or kind.__module__ not in ("builtins", "_pickle"):
            raise
        where = _culprit_of(value, contents)
        if where is None:
            raise
        raise kind(f"cannot pickle {where}: {error}") from error


# ---- Classes that travel by value ----

_own: WeakSet[type] = WeakSet()  # that were made here, and have been sent
_arrived: WeakSet[type] = WeakSet()


def _set_class_state(cls: type, state: Any) -> type:
    """The end of unpickling a class. One that comes back to where it was made is there, and stays as it is."""
    if cls in _own:
        return cls
    _arrived.add(cls)
    _newest.pop(cls, None)  # it is what has come now
    from cloudpickle.cloudpickle import _class_setstate

    return _class_setstate(cls, state)


_LOADED_MAX = 256
_LOADED_BYTES_MAX = 1 << 24
_loaded: dict[bytes, type] = {}  # that have been decoded here, by their pickles
_loaded_bytes = 0
_newest: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()  # what each of them is now


def loaded_classes() -> list[type]:
    """Those that have come by value."""
    return list(_newest)


class _Apart:
    """A class that is pickled by itself: who gets the same bytes again need not decode them again."""

    def __init__(self, cls: type) -> None:
        self._pickled = dumps_code(cls)

    def __reduce__(self) -> Any:
        return _load_class, (self._pickled,)


def _with_class_apart(value: Any) -> tuple[Any, list[Any]] | None:
    """None: something beside the class travels by value too, and may share variables with it."""
    cls, *rest = value
    if cls.__module__ not in BY_VALUE:
        return None
    try:
        return _dump(_FastPickler(), (_Apart(cls), *rest))
    except Exception:
        return None


def _load_class(pickled: bytes) -> type:
    cls = _loaded.get(pickled)
    if cls is None or _newest.get(cls) != pickled:  # a class that was changed is the same one, with other contents
        cls = pickle.loads(pickled)
        _remember(cls, pickled)
    return cls


def _remember(cls: type, pickled: bytes) -> None:
    global _loaded_bytes
    if len(_loaded) >= _LOADED_MAX or _loaded_bytes + len(pickled) > _LOADED_BYTES_MAX:
        _loaded.clear()
        _loaded_bytes = 0
    _newest[cls] = pickled
    if len(pickled) <= _LOADED_BYTES_MAX:
        _loaded[pickled] = cls
        _loaded_bytes += len(pickled)


def importable_name(cls: type) -> tuple[str, str] | None:
    """Module and qualified name by which a receiver can import ``cls``; None if pickle has to say how it travels."""
    module, qualname = cls.__module__, cls.__qualname__
    if module in BY_VALUE or type(cls) not in (type, ABCMeta) or _some_modules_by_value():
        return None
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return (module, qualname) if found is cls else None


def _some_modules_by_value() -> bool:
    registered = sys.modules.get("cloudpickle.cloudpickle")
    return registered is not None and bool(registered._PICKLE_BY_VALUE_MODULES)


def dumps_code(value: Any) -> bytes:
    """One pickle, without buffers beside it, of what may hold code; for a process of this job."""
    pickler = (_code_pickler or _make_code_pickler())(in_band=True)
    pickler.dump(value)
    return pickler.file.getvalue()


def _dump(pickler: Any, value: Any) -> tuple[Any, list[Any]]:
    pickler.dump(value)
    return pickler.file.getbuffer(), [buffer.raw() for buffer in pickler.buffers]


def _culprit_of(value: Any, contents: int) -> str | None:
    """As :func:`_culprit`, for a whole message."""
    if contents not in (CALL, SPAWN):
        return _culprit(value, "the result" if contents == RESULT else "the message", 0)
    args, kwargs = value[1:3] if contents == SPAWN else value
    parts = [(f"argument {i}", item) for i, item in enumerate(args)]
    parts += [(f"argument {name!r}", item) for name, item in (kwargs or {}).items()]
    if contents == SPAWN:
        parts.append((f"the class {value[0].__qualname__}", value[0]))
    for label, item in parts:
        found = _culprit(item, label, 0)
        if found is not None:
            return found
    return None


def _culprit(value: Any, where: str, depth: int) -> str | None:
    """The innermost part of ``value`` that does not pickle, described; None if it pickles after all."""
    try:
        dumps_code(value)
        return None
    except Exception:
        pass
    if depth >= 8:
        return where
    parts: list[tuple[str, Any]]
    if isinstance(value, (tuple, list)):
        parts = [(f"{where}[{i}]", item) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        parts = [(f"{where}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, type):
        parts = [(f"attribute {value.__qualname__}.{key}", item) for key, item in vars(value).items()]
    else:
        found = getattr(value, "__dict__", None) or {}
        parts = [(f"attribute {key!r} of {type(value).__qualname__}", item) for key, item in found.items()]
        function = getattr(value, "_method", value)
        cells = getattr(function, "__closure__", None) or ()
        names = function.__code__.co_freevars if cells else ()
        parts += [(f"{name!r}, which {function.__qualname__} uses", c.cell_contents) for name, c in zip(names, cells)]
        code = getattr(function, "__code__", None)
        if code is not None:
            used = function.__globals__
            parts += [
                (f"the global {name!r}, which {function.__qualname__} uses", used[name])
                for name in code.co_names
                if name in used
            ]
    for label, item in parts:
        inner = _culprit(item, label, depth + 1)
        if inner is not None:
            return inner
    return f"{where} ({type(value).__module__}.{type(value).__qualname__})"
