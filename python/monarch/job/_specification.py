"""What a job wants as a hash, so that one that was saved can be told from one that was altered."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

_DEPTH_MAX = 20


def digest(class_name: str, wants: Any) -> str:
    """SHA-256 of that, the same in every process: hexadecimal digits.

    Args:
        class_name: of the job.
        wants: as ``JobTrait._specification`` has it.
    """
    text = json.dumps([class_name, _plain(wants, 0)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _plain(value: Any, depth: int) -> Any:
    """As JSON. Of what that does not know: its class and its attributes, no addresses, no order of sets."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if depth == _DEPTH_MAX:
        return name
    if isinstance(value, dict):
        return {"items": [[_plain(key, depth + 1), _plain(each, depth + 1)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(json.dumps(_plain(each, depth + 1), sort_keys=True) for each in value)}
    if dataclasses.is_dataclass(value):
        return [
            name,
            {field.name: _plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)},
        ]
    return [name, _plain(getattr(value, "__dict__", None), depth + 1)]
