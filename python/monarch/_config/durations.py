"""Durations as text, in the format of the Rust crate humantime: ``"10s"``, ``"1h 30m"``, ``"500ms"``, ``"1.5s"``."""

from __future__ import annotations

__all__ = ["format_duration", "parse_duration"]

_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_SECONDS_MAX = 2**64 - 1

# Written largest first; a month is 30.44 days and a year 365.25.
_WRITTEN = (
    ("year", 31_557_600 * _SECOND),
    ("month", 2_630_016 * _SECOND),
    ("day", _DAY),
    ("h", 3600 * _SECOND),
    ("m", 60 * _SECOND),
    ("s", _SECOND),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
)
_SPELLINGS = {
    "ns": "nanos nsec ns",
    "us": "usec us µs μs",  # the micro sign, and the Greek letter that looks like it
    "ms": "millis msec ms",
    "s": "seconds second secs sec s",
    "m": "minutes minute mins min m",
    "h": "hours hour hrs hr h",
    "day": "days day d",
    "week": "weeks week wks wk w",
    "month": "months month M",
    "year": "years year yrs yr y",
}
_SIZES = {**dict(_WRITTEN), "week": 7 * _DAY}
_UNITS = {spelling: _SIZES[unit] for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}


def parse_duration(text: str) -> int:
    """Nanoseconds. ``ValueError`` (``Invalid duration format ...``) if the text is none, or beyond 2^64 seconds."""
    try:
        return _parse(text)
    except ValueError as error:
        raise ValueError(f"Invalid duration format '{text}': {error}") from None


def _parse(text: str) -> int:
    total = 0
    at = _skip(text, 0, str.isspace)
    if at == len(text):
        raise ValueError("value was empty")
    while at < len(text):
        number, at = _number(text, at)
        end = _skip(text, at, str.isalpha)
        total += _nanoseconds(number, text[at:end])
        if end < len(text) and not (text[end].isspace() or _is_digit(text[end])):
            raise ValueError(f"invalid character at {end}")
        at = _skip(text, end, str.isspace)
    if total // _SECOND > _SECONDS_MAX:
        raise ValueError(_LOSES)
    return total


_LOSES = "number is too large or cannot be represented without a lack of precision (values below 1ns are not supported)"


def _number(text: str, at: int) -> tuple[str, int]:
    """The digits from ``at``, with a fraction if there is one, and where the unit begins."""
    end = _skip(text, at, _is_digit)
    if end == at:
        raise ValueError(f"expected number at {at}")
    if text[end : end + 1] == ".":
        fraction_end = _skip(text, end + 1, _is_digit)
        if fraction_end == end + 1:
            raise ValueError(f"invalid character at {end}")
        end = fraction_end
    unit_at = _skip(text, end, str.isspace)
    if unit_at < len(text) and not text[unit_at].isalpha() and not (unit_at > end and _is_digit(text[unit_at])):
        raise ValueError(f"invalid character at {unit_at}")
    return text[at:end], unit_at


def _nanoseconds(number: str, unit: str) -> int:
    if not unit:
        raise ValueError(f"time unit needed, for example {number}sec or {number}ms")
    size = _UNITS.get(unit)
    if size is None:
        raise ValueError(
            f'unknown time unit "{unit}", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, '
            "years (and few variations)"
        )
    whole, _, fraction = number.partition(".")
    if len(number) > 40:
        raise ValueError(_LOSES)
    value, rest = divmod(int(whole + fraction) * size, 10 ** len(fraction))
    if rest:
        raise ValueError(_LOSES)
    return value


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _skip(text: str, at: int, matches) -> int:
    while at < len(text) and matches(text[at]):
        at += 1
    return at


def format_duration(nanoseconds: int) -> str:
    """The one way to write a duration: ``"1m 30s"``, ``"2days"``, ``"0s"``."""
    words = []
    for unit, size in _WRITTEN:
        count, nanoseconds = divmod(nanoseconds, size)
        if count:
            plural = "s" if count > 1 and size >= _DAY else ""
            words.append(f"{count}{unit}{plural}")
    return " ".join(words) or "0s"
