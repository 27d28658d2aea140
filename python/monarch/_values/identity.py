"""Identities as text: ``Uid``, ``ProcId`` and ``ActorAddr``."""

from __future__ import annotations

from typing import Any

__all__ = ["ActorAddr", "ProcId", "Uid"]

_DIGITS = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"  # base 58: no 0, O, I, l
_VALUE_MAX = 2**64 - 1
_LABEL_MAX = 63
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz")
_LAST = _LOWER | frozenset("0123456789")
_LABEL = _LAST | frozenset("_-")


class Uid:
    """A singleton, known by its label (``service``), or an instance, known by a 64-bit number (``svc<7>``, ``<7>``).

    The label of an instance is for people: it does not count when instances are compared. A label has up to 63
    characters: lower-case letters, digits, ``_`` and ``-``; first a letter, last a letter or a digit. Immutable,
    hashable, picklable.
    """

    __slots__ = ("_label", "_value")
    _label: str | None
    _value: int | None

    def __init__(self, *_: Any) -> None:
        raise TypeError("cannot create 'Uid' instances: use Uid.instance(), Uid.anonymous() or Uid.from_string()")

    @classmethod
    def _make(cls, label: str | None, value: int | None) -> Uid:
        uid = object.__new__(cls)
        uid._label, uid._value = label, value
        return uid

    @classmethod
    def instance(cls, label: str | None = None) -> Uid:
        """A new one, random. ``ValueError`` for what is no label."""
        import os

        return cls.instance_from_value(int.from_bytes(os.urandom(8), "little"), label)

    @classmethod
    def anonymous(cls) -> Uid:
        """A new one without a label."""
        return cls.instance()

    @classmethod
    def instance_from_value(cls, value: int, label: str | None = None) -> Uid:
        """``OverflowError`` for a value that is not 0 to 2^64-1, ``ValueError`` for what is no label."""
        value = value.__index__()
        if value < 0:
            raise OverflowError("can't convert negative int to unsigned")
        if value > _VALUE_MAX:
            raise OverflowError("int too big to convert")
        if label is not None and (problem := _label_problem(label)):
            raise ValueError(f"invalid uid label: {problem}")
        return cls._make(label, value)

    @classmethod
    def from_string(cls, uid: str) -> Uid:
        """What ``str()`` gives. ``ValueError`` for any other text."""
        return cls._make(*_parse(uid, "invalid uid"))

    @property
    def label(self) -> str | None:
        """The name for people, or None."""
        return self._label

    @property
    def is_instance(self) -> bool:
        """Is it one of many of its label, told apart by a number?"""
        return self._value is not None

    @property
    def is_singleton(self) -> bool:
        """Is it the only one of its label?"""
        return self._value is None

    @property
    def instance_value(self) -> int | None:
        """The number of an instance, None for a singleton."""
        return self._value

    def __str__(self) -> str:
        label = self._label or ""
        return label if self._value is None else f"{label}<{_encode(self._value)}>"

    def __repr__(self) -> str:
        return f"Uid.from_string({str(self)!r})"

    def _identity(self) -> tuple[str | None, int | None]:
        return (self._label if self._value is None else None), self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uid) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Any, ...]:
        return Uid._make, (self._label, self._value)


class ProcId:
    """The identity of a process: its :class:`Uid`. Immutable, hashable, picklable."""

    __slots__ = ("_uid",)

    def __init__(self, uid: Uid) -> None:
        if not isinstance(uid, Uid):
            raise TypeError(f"a ProcId is made of a Uid, not of {uid!r}; from text: ProcId.from_string()")
        self._uid = uid

    @classmethod
    def from_string(cls, proc_id: str) -> ProcId:
        """What ``str()`` gives. ``ValueError`` for any other text."""
        return cls(Uid._make(*_parse(proc_id, "invalid proc id")))

    @property
    def uid(self) -> Uid:
        """What tells the process from others."""
        return self._uid

    @property
    def label(self) -> str | None:
        """The name for people, or None."""
        return self._uid.label

    def __str__(self) -> str:
        return str(self._uid)

    def __repr__(self) -> str:
        return f"ProcId.from_string({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcId) and self._uid == other._uid

    def __hash__(self) -> int:
        return hash((ProcId, self._uid))

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcId, (self._uid,)


class ActorAddr(str):
    """The identity of an incarnation of an actor: ``context().actor_instance.actor_id``. A ``str``, and its parts."""

    __slots__ = ()

    @property
    def actor_name(self) -> str:
        """The name that the actor was spawned under."""
        return self.rpartition("<")[0]

    @property
    def label(self) -> str:
        """As ``actor_name``."""
        return self.actor_name

    @property
    def uid(self) -> Uid:
        """The number of the actor, which is unique in its job but for the ranks of one mesh."""
        return Uid.instance_from_value(int(self.rpartition("<")[2].partition(">")[0], 16))

    @property
    def proc_id(self) -> str:
        """The process, as ``context().actor_instance.proc_id``."""
        return self.rpartition("@")[2]


# ---- Text ----


def _parse(text: str, what: str) -> tuple[str | None, int | None]:
    """(label, value). ``what`` begins the text of the error."""
    if not isinstance(text, str):
        raise TypeError(f"an identity is read from a str, not from {text!r}")
    label, bracket, rest = text.partition("<")
    problem = None
    if label or not bracket:
        problem = _label_problem(label)
    value = None
    if bracket and not problem:
        digits, closing, tail = rest.partition(">")
        value = _decode(digits)
        if not closing:
            problem = 'expected ">", found end of input'
        elif tail:
            problem = f'expected end of input, found "{tail}"'
        elif value is None:
            problem = f"invalid base58 uid: {digits}"
    if problem:
        raise ValueError(f"{what}: invalid uid syntax: {problem} (in {text!r})")
    return label or None, value


def _label_problem(label: str) -> str | None:
    if not label:
        return "label must not be empty"
    if len(label) > _LABEL_MAX:
        return f"label exceeds {_LABEL_MAX} characters"
    if label[0] not in _LOWER:
        return "label must start with a lowercase letter"
    for character in label:
        if character not in _LABEL:
            return f"label contains invalid character {character!r}"
    if label[-1] not in _LAST:
        return "label must end with a lowercase letter or digit"
    return None


def _encode(value: int) -> str:
    digits = ""
    while value or not digits:
        value, digit = divmod(value, 58)
        digits = _DIGITS[digit] + digits
    return digits


def _decode(digits: str) -> int | None:
    value = 0
    for digit in digits:
        at = _DIGITS.find(digit)
        value = value * 58 + at
        if at < 0 or value > _VALUE_MAX:
            return None
    return value if digits else None
