"""The methods that every mesh has, whatever its members are: slicing, reshaping, sizes.

All of them return at once and keep the base ranks, so a view of a view still names the same members.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch._values.geometry import Extent, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MeshTrait"]


class Undefined:
    """An attribute that subclasses or their instances are to have; until then NotImplementedError says so."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        raise NotImplementedError(self._text.format(type(instance).__name__))


class MeshTrait:
    """What hosts, processes, actors and values have in common: an array with named dimensions, the first outermost.

    Ranks are row-major. All methods return at once; views name the same members. (A mix-in over two hooks: ``_shape``,
    a property or an attribute, and the method ``_new_with_shape``.)
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def _shape(self) -> Shape:
            """Labels and base ranks of this mesh."""

    else:
        _shape = Undefined("{} does not define _shape")

    def _new_with_shape(self, shape: Shape) -> Self:
        """A view of the same members, restricted and arranged as ``shape`` says."""
        raise NotImplementedError(f"{type(self).__name__} does not define _new_with_shape")

    def slice(self, /, **dims: int | builtins.slice) -> Self:
        """A view: an int picks one index and drops the dimension, a slice keeps it.

        Slices follow Python (``slice(-2, None)`` are the last two); their steps must be positive. An unknown dimension
        is a ``TypeError``, an int out of range (or negative) an ``IndexError``, an empty range a ``ValueError``.
        """
        try:
            shape = self._shape._slice(dims)
        except (TypeError, IndexError, ValueError) as error:
            raise type(error)(f"{error} (of a mesh with the dimensions {self.sizes})") from None
        return self._new_with_shape(shape)

    def split(self, /, **dims: Sequence[str] | int) -> Self:
        """Turns one dimension into several, the first outermost: ``mesh.split(rank=("host", "gpu"), gpu=8)``.

        Integers give sizes of new dimensions; one per split may be left out and is inferred. What does not divide, or
        leaves two sizes open, is a ``ValueError``.
        """
        shape = self._shape
        old = shape.labels
        splits: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        for label, value in dims.items():
            if label in old:
                splits[label] = _dimension_names(value)
            elif hasattr(value, "__index__"):
                sizes[label] = operator.index(value)
            else:
                raise ValueError(f"{label!r} is not an existing dim. Expected an integer size constraint on a new dim.")
        return self._new_with_shape(shape._split(splits, sizes))

    def flatten(self, name: str) -> Self:
        """One dimension over all members, in rank order. A view with gaps cannot: ``ValueError``."""
        return self._new_with_shape(self._shape._flatten(name))

    def rename(self, /, **dims: str) -> Self:
        """Gives dimensions new names: ``mesh.rename(old="new")``. A name that is taken is a ``ValueError``."""
        return self.split(**{label: (name,) for label, name in dims.items()})

    def size(self, dim: None | str | Sequence[str] = None) -> int:
        """The number of members along a dimension, or the product over several; of all by default.

        An unknown dimension is a ``KeyError``.
        """
        if dim is None:
            return len(self)
        sizes = self.sizes
        product = 1
        for label in (dim,) if isinstance(dim, str) else dim:
            if label not in sizes:
                raise KeyError(f"{self!r} does not have dimension {label!r}")
            product *= sizes[label]
        return product

    @property
    def sizes(self) -> dict[str, int]:
        """Label to size, outermost first."""
        return _sizes_of(self._shape)

    @property
    def extent(self) -> Extent:
        """Labels and sizes, as a value."""
        return self._shape.extent

    def __len__(self) -> int:
        return len(self._shape)


def _sizes_of(shape: Shape) -> dict[str, int]:
    return dict(zip(shape.labels, shape.ndslice.sizes))


def _dimension_names(value: Any) -> list[str]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise ValueError(f"expected a sequence of dimensions, but got {value!r}")
    return list(value)
