"""The configuration of this process: what is set for each key of ``keys``, in layers.

From low to high: the default; what the process that started this one had configured by then (``take_up``); what this
process has configured; the environment. The rest of the package asks with ``get`` or ``seconds`` when it needs a value,
so a change holds from then on. Changes replace a dictionary, so any thread may read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from monarch._config import state
from monarch._config.durations import format_duration, parse_duration
from monarch._config.keys import ENVIRONMENT_ONLY, KEYS
from monarch._config.transports import BindSpec, Encoding

# What counts as for ever where a time limit is asked for: 31 years, which fits the core's nanoseconds.
_SECONDS_MAX = 1e9

_from_parent: Mapping[str, Any] = {}
_configured: Mapping[str, Any] = {}
_seconds: dict[str, float] = {}  # what the durations that were asked for mean
_read: dict[str, tuple[str, Any]] = {}  # environment variable -> (its text, the value; None: not a valid one)


def get(key: str) -> Any:
    """The value in force, as the public dictionaries show it. ``KeyError`` if there is no such key."""
    said = wanted(key)
    return _of_table(*KEYS[key][:2]) if said is None else said


def wanted(key: str) -> Any:
    """The same, where somebody has said it; else None."""
    kind, _, variable = KEYS[key]
    text = os.environ.get(variable)
    if text:
        value = _of_environment(kind, variable, text)
        if value is not None:
            return value
    for layer in (_configured, _from_parent):
        if key in layer:
            return layer[key]
    return None


def seconds(key: str) -> float:
    """A duration that is in force, in seconds; at most 31 years."""
    text = get(key)
    if text not in _seconds:
        _seconds[text] = min(parse_duration(text) / 1e9, _SECONDS_MAX)
    return _seconds[text]


def global_config() -> dict[str, Any]:
    """All keys that can be configured, with what is in force."""
    return {key: get(key) for key in KEYS if key not in ENVIRONMENT_ONLY}


def runtime_config() -> dict[str, Any]:
    """All keys that can be configured, with what this process has configured or else the default."""
    defaults = {key: _of_table(KEYS[key][0], KEYS[key][1]) for key in KEYS if key not in ENVIRONMENT_ONLY}
    return {**defaults, **_configured}


def configure(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Checks all ``values``, then sets them. Returns what was configured before, for :func:`restore`."""
    global _configured
    before = _configured
    _configured = {**before, **{key: _checked(key, value) for key, value in values.items()}}
    _tell()
    return before


def restore(configured: Mapping[str, Any]) -> None:
    global _configured
    _configured = configured
    _tell()


def _tell() -> None:
    state.changed = state.changed or bool(_configured)
    for listener in state.listeners:
        listener()


def for_children() -> Mapping[str, Any]:
    """What a process that is started now is told. (It inherits the environment besides.)"""
    return {**_from_parent, **_configured}


def take_up(layer: Mapping[str, Any]) -> None:
    """In a new process: what its parent has told it."""
    global _from_parent
    _from_parent = layer
    state.changed = True


# ---- Values ----


def _checked(key: str, value: Any) -> Any:
    if key not in KEYS:
        import difflib

        close = difflib.get_close_matches(key, KEYS, 1)
        hint = f" (did you mean `{close[0]}`?)" if close else ""
        raise ValueError(f"invalid configuration key: `{key}`{hint}")
    kind, _, variable = KEYS[key]
    if key in ENVIRONMENT_ONLY:
        raise TypeError(
            f"configuration key `{key}` is set by the environment ({variable}); configuring it from Python is not "
            "supported."
        )
    if kind == "transport":
        return _bind_spec(value)
    try:
        return _normalised(kind, value)
    except _Zero as error:
        raise ValueError(f"invalid value `0` for configuration key `{key}` ({error})") from None
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"{type(error).__name__}: {error}"
        if kind == "duration" and not isinstance(value, str):
            problem += '; a duration is text, such as "30s"'
        raise TypeError(f"invalid value `{value!r}` for configuration key `{key}` ({problem})") from None


def _normalised(kind: str, value: Any) -> Any:
    if kind == "duration":
        return format_duration(parse_duration(_cast(value, str)))
    if kind == "str":
        return _cast(value, str)
    if kind == "bool":
        return _cast(value, bool)
    if kind == "float":
        return _real(value)
    if kind == "Encoding":
        return _cast(value, Encoding)
    if kind == "int or None" and value is None:
        return None
    number = _integer(value, 255 if kind == "int (0 to 255)" else 2**64 - 1)
    if number == 0 and kind in ("int (at least 1)", "int or None"):
        raise _Zero("expected an integer of at least 1")
    return number


class _Zero(ValueError):
    pass


def _cast(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__!r} object cannot be cast as {kind.__name__!r}")
    return value


def _real(value: Any) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return float(value)


def _integer(value: Any, largest: int) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{type(value).__name__!r} object cannot be interpreted as an integer")
    number = value.__index__()
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number > largest:
        raise OverflowError(f"int too big, at most {largest}")
    return int(number)


def _bind_spec(value: Any) -> Any:
    return BindSpec(value)


def _of_table(kind: str, default: Any) -> Any:
    if kind == "transport":
        return _bind_spec(default)
    if kind == "Encoding":
        return getattr(Encoding, default)
    return default


# ---- The environment ----

_BOOLS = {"1": True, "true": True, "0": False, "false": False}
_ENCODINGS = {"bincode": "Bincode", "serde_json": "Json", "serde_multipart": "Multipart"}


def _of_environment(kind: str, variable: str, text: str) -> Any:
    """The value that a variable's text stands for; None, with one warning, if it stands for none."""
    known = _read.get(variable)
    if known is not None and known[0] == text:
        return known[1]
    value = None
    try:
        value = _of_text(kind, text)
    except (TypeError, ValueError, OverflowError) as error:
        import warnings

        warnings.warn(f"environment variable {variable} is ignored: {error}", RuntimeWarning, stacklevel=3)
    _read[variable] = text, value
    return value


def _of_text(kind: str, text: str) -> Any:
    if kind == "transport":
        return _bind_spec(text)
    if kind == "Encoding":
        return _of_table(kind, _choice(_ENCODINGS, text))
    if kind == "bool":
        return _choice(_BOOLS, text.lower())
    if kind == "float":
        return float(text)
    if kind.startswith("int"):
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"expected an integer, got {text!r}")
        return _normalised(kind, int(text))
    return _normalised(kind, text)


def _choice(choices: dict[str, Any], text: str) -> Any:
    if text not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}; got {text!r}")
    return choices[text]
