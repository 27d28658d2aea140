"""What a job wants as a hash, so that one that was saved can be told from one that was altered."""

from __future__ import annotations

import enum
import hashlib
import json
import sys
import types
from typing import Any

_DEPTH_MAX = 20


def digest(class_name: str, wants: Any) -> str:
    """SHA-256 of that, the same in every process: hexadecimal digits.

    Args:
        class_name: of the job.
        wants: as ``JobTrait._specification`` has it.
    """
    text = _json([class_name, _Hashes().of(wants, 0)])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class _Hashes:
    """Of objects that are more than a number or a text, each looked at once: many may refer to the same ones."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, str]] = {}  # by ids
        self._open: dict[int, int] = {}  # those that are being looked at -> how deep they are
        self._kept: list[Any] = []  # lest ids are used again

    def of(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        if (at := self._open.get(id(value))) is not None:
            return {"around": depth - at}
        if (known := self._known.get(id(value))) is not None:
            return known
        if depth == _DEPTH_MAX:
            return _name(type(value))
        self._kept.append(value)
        self._open[id(value)] = depth
        text = _json(self._parts(value, depth + 1))
        del self._open[id(value)]
        known = {"sha256": hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()}
        self._known[id(value)] = known
        return known

    def _parts(self, value: Any, depth: int) -> Any:
        """Of what JSON does not know: its class and what it is made of, no addresses, no order of sets."""
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": value.hex()}
        if isinstance(value, dict):
            return {"items": [[self.of(key, depth), self.of(each, depth)] for key, each in value.items()]}
        if isinstance(value, (list, tuple)):
            return [self.of(each, depth) for each in value]
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(_json(self._element(each, depth)) for each in value)}
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return {"named": _name(value)}
        name = _name(type(value))
        dataclasses = sys.modules.get("dataclasses")  # whose instances are there once it has been imported
        if dataclasses is not None and dataclasses.is_dataclass(value):
            return [
                name,
                {field.name: self.of(getattr(value, field.name), depth) for field in dataclasses.fields(value)},
            ]
        if (attributes := getattr(value, "__dict__", None)) is not None and not isinstance(value, enum.Enum):
            return [name, self.of(attributes, depth)]
        return [name, self.of(_reduced(value), depth)]

    def _element(self, value: Any, depth: int) -> Any:
        """Those that are told apart by their addresses come in any order, so of them only the class counts."""
        return self.of(value, depth) if type(value).__hash__ is not object.__hash__ else _name(type(value))


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _reduced(value: Any) -> Any:
    """What an object without attributes is made of again: a Path, a date, a Decimal."""
    try:
        parts = value.__reduce_ex__(2)
    except Exception:  # it cannot be pickled, so it is not among what was
        return None if type(value).__repr__ is object.__repr__ else repr(value)
    if isinstance(parts, str):
        return parts
    _, arguments, state, *iterators = (*parts, None)[:5] if len(parts) == 2 else parts[:5]
    return [arguments, state, *(None if each is None else list(each) for each in iterators)]
