"""ValueMesh: one value per member of a mesh; what ``endpoint.call(...)`` gives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any, Generic, TypeVar

from monarch._values.geometry import Point, Shape
from monarch._values.mesh_trait import MeshTrait

R = TypeVar("R")

__all__ = ["Lazy", "ValueMesh"]

_publish = Lock()


class Lazy:
    """A reply that has not been looked at: ``decode(raw)`` runs at the first ``get()``; its value is kept.

    ``raw`` compares by content with ``==``. Decoding runs without a lock, as it may run the user's code;
    when two threads are first at the same time, both get the value of the one that finished first. If it
    raises, nothing is kept and the next ``get()`` tries again.
    """

    __slots__ = ("_decode", "_payload")

    def __init__(self, raw: Any, decode: Callable[[Any], Any]) -> None:
        self._decode: Callable[[Any], Any] | None = decode
        self._payload = raw  # the raw reply; after decoding, the value

    def get(self) -> Any:
        if self._decode is None:  # cleared after the value was stored
            return self._payload
        with _publish:
            decode, payload = self._decode, self._payload
        if decode is None:
            return payload
        value = decode(payload)
        with _publish:
            if self._decode is not None:
                self._payload, self._decode = value, None
            return self._payload


class ValueMesh(MeshTrait, Generic[R]):
    """Values arranged as a mesh, one for each rank of ``shape``, else ``ValueError``: what ``call`` gives.

    Iteration gives (point, value) in rank order; there is no ``vm[...]``. Views share the values; ``==`` is identity;
    it pickles. Answers that are pickles are decoded at the first look, which raises what that raises. Any thread may
    look.
    """

    # _values[i] belongs to the i-th base rank of _stored; _view names the ranks that this view shows.
    __slots__ = ("_stored", "_values", "_view", "__weakref__")

    def __init__(self, shape: Shape, values: Iterable[R]) -> None:
        if not isinstance(shape, Shape):
            raise TypeError(f"the shape of a ValueMesh must be a Shape, but got {shape!r}")
        entries = list(values)
        if len(entries) != len(shape):
            raise _wrong_count(shape, len(entries))
        _compress(entries)
        self._stored = self._view = shape
        self._values = entries

    @classmethod
    def from_indexed(cls, shape: Shape, pairs: Iterable[tuple[int, R]]) -> ValueMesh[R]:
        """From (rank in the mesh, value) pairs in any order; of several for one rank the last counts.

        A rank that is missing, or that the shape does not have, is a ``ValueError``.
        """
        by_rank = dict(pairs)
        expected = len(shape)
        if len(by_rank) != expected:
            raise _wrong_count(shape, len(by_rank))
        for rank in by_rank:
            if not 0 <= rank < expected:
                raise ValueError(f"invalid value mesh: rank {rank} is not one of the {expected} ranks")
        return cls(shape, [by_rank[rank] for rank in range(expected)])

    def item(self, /, **coords: int) -> R:
        """The value at one place: ``vm.item(replicas=0, gpus=3)``.

        A dimension that is missing or unknown is a ``KeyError``, an index out of range an ``IndexError``.
        """
        sizes = self.sizes
        place = [coords.pop(label) for label in sizes]  # a missing one raises KeyError
        if coords:
            raise KeyError(f"item has extra dimensions: {list(coords)}")
        for index, (label, size) in zip(place, sizes.items()):
            if not 0 <= operator.index(index) < size:
                raise IndexError(f"index {index} out of range for dimension {label!r} of size {size}")
        return self._at_base_rank(self._view.ndslice.nditem(place))

    def get(self, rank: int) -> R:
        """The value of a linear rank of this mesh; out of range is a ``ValueError``."""
        if not 0 <= operator.index(rank) < len(self):
            raise ValueError(f"index {rank} out of range (len={len(self)})")
        if self._view is self._stored:
            return _value_of(self._values[rank])
        return self._at_base_rank(self._view.ndslice[rank])

    def values(self) -> list[R]:
        """All values in rank order."""
        return [_value_of(entry) for entry in self._entries()]

    def items(self) -> Iterator[tuple[Point, R]]:
        """(point in this mesh, value) in rank order."""
        extent = self.extent
        for rank, entry in enumerate(self._entries()):
            yield Point(rank, extent), _value_of(entry)

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def __repr__(self) -> str:
        from pprint import pformat

        body = pformat(tuple(self.items()), sort_dicts=False).replace("\n", "\n  ")
        return f"ValueMesh({self.extent}):\n  {body}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._view, self.values())

    @property
    def _shape(self) -> Shape:
        return self._view

    def _new_with_shape(self, shape: Shape) -> ValueMesh[R]:
        view = object.__new__(type(self))
        view._stored, view._values, view._view = self._stored, self._values, shape
        return view

    def _entries(self) -> list[Any]:
        if self._view is self._stored:
            return self._values
        index = self._stored.ndslice.index
        return [self._values[index(rank)] for rank in self._view.ndslice]

    def _at_base_rank(self, rank: int) -> R:
        return _value_of(self._values[self._stored.ndslice.index(rank)])


def _value_of(entry: Any) -> Any:
    return entry.get() if type(entry) is Lazy else entry


def _compress(entries: list[Any]) -> None:
    """Equal neighbouring replies keep one raw copy between them; each is decoded apart, so values never alias.

    No lock: a Lazy has not been given to anybody else before it is in a mesh.
    """
    previous = None
    for entry in entries:
        if type(entry) is not Lazy or entry._decode is None:
            previous = None
            continue
        raw = entry._payload
        if previous is not None and entry._decode is previous._decode and type(raw) is type(previous._payload):
            if raw == previous._payload:
                entry._payload = previous._payload
        previous = entry


def _wrong_count(shape: Shape, count: int) -> ValueError:
    return ValueError(f"invalid value mesh: expected {len(shape)} ranks, but contains {count} ranks")
