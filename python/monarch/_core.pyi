"""Types of the native core, so far of its geometry; the docstrings of what has no Python class stand here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

class Extent:
    """Labels and sizes of a mesh, row-major, the first label the outermost. Printed: ``{hosts: 2, gpus: 4}``.

    Iteration and ``len`` are over labels; ``extent[label]`` is a size, of an unknown label a ``ValueError``.
    """

    def __init__(self, labels: Sequence[str], sizes: Sequence[SupportsIndex]) -> None:
        """As many labels, all different, as sizes, all positive, at most 16 of them; else ``ValueError``."""

    @property
    def labels(self) -> list[str]:
        """The names of the dimensions."""

    @property
    def sizes(self) -> list[int]:
        """The sizes of the dimensions."""

    @property
    def nelements(self) -> int:
        """The number of ranks: the product of the sizes; 1 without dimensions."""

    @property
    def region(self) -> Region:
        """The region of all its ranks."""

    def keys(self) -> list[str]:
        """As ``labels``, so that ``dict(extent)`` works."""

    def __getitem__(self, label: str) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, label: object) -> bool: ...
    def __hash__(self) -> int: ...

class Point(Mapping[str, int]):
    """A rank together with its coordinates in an extent: a mapping of label to index.

    So ``mesh.slice(**point)`` works. An unknown label is a ``ValueError``, also in ``get`` and ``in``. Printed with
    sizes: ``{'hosts': 1/2, 'gpus': 1/4}``.
    """

    def __init__(self, rank: SupportsIndex, extent: Extent) -> None:
        """The extent must have the rank, else ``ValueError``."""

    @property
    def rank(self) -> int:
        """The number of the place, row-major, from 0."""

    @property
    def extent(self) -> Extent:
        """What it is a place in."""

    def size(self, label: str) -> int:
        """The size of a dimension of the extent."""

    def get(self, label: str, default: int | None = None) -> int:  # type: ignore[override]
        """The coordinate; ``default`` is taken and never needed."""

    def keys(self) -> list[str]:  # type: ignore[override]
        """The labels."""

    def values(self) -> list[int]:  # type: ignore[override]
        """The coordinates."""

    def items(self) -> list[tuple[str, int]]:  # type: ignore[override]
        """(label, coordinate) pairs."""

    def __getitem__(self, label: str) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __hash__(self) -> int: ...

class Slice:
    """Which numbers a strided, multi-dimensional range names. ``monarch.NDSlice`` is this type.

    Iteration, ``slice[i]`` and ``slice[a:b]`` go over the numbers, in row-major order of their places.
    """

    def __init__(
        self, *, offset: SupportsIndex, sizes: Sequence[SupportsIndex], strides: Sequence[SupportsIndex]
    ) -> None:
        """No number comes twice, else ``ValueError``.

        Args:
            offset: the first number.
            sizes: of the dimensions, outermost first, positive.
            strides: how far apart neighbours of each dimension are, positive, as many as sizes.
        """

    @staticmethod
    def new_row_major(sizes: Sequence[SupportsIndex]) -> Slice:
        """All numbers from 0, without gaps."""

    @staticmethod
    def from_list(ranks: Sequence[SupportsIndex]) -> list[Slice]:
        """Slices that name these numbers between them."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""

    @property
    def offset(self) -> int:
        """The first number."""

    @property
    def sizes(self) -> list[int]:
        """The number of steps in each dimension."""

    @property
    def strides(self) -> list[int]:
        """How far a step goes in each dimension."""

    def index(self, value: SupportsIndex) -> int:
        """The place of a number, counted row-major; a number that is not there is a ``ValueError``."""

    def coordinates(self, value: SupportsIndex) -> list[int]:
        """The place of a number in each dimension; a number that is not there is a ``ValueError``."""

    def nditem(self, coordinates: Sequence[SupportsIndex]) -> int:
        """The number at a place; out of range is an ``IndexError``."""

    def get(self, index: SupportsIndex) -> int:
        """The number at a place, counted row-major; out of range is a ``ValueError``, negative an ``OverflowError``."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...
    def __contains__(self, value: object) -> bool: ...
    def __hash__(self) -> int: ...

class Shape:
    """Labels over a ``Slice``: a mesh, or a view of one that still knows the ranks of the whole."""

    def __init__(self, labels: Sequence[str], slice: Slice) -> None:
        """As many labels, all different, as the slice has dimensions; else ``ValueError``."""

    @staticmethod
    def unity() -> Shape:
        """One rank, without dimensions."""

    @property
    def labels(self) -> list[str]:
        """The names of the dimensions."""

    @property
    def ndslice(self) -> Slice:
        """The ranks."""

    @property
    def region(self) -> Region:
        """The same as a region."""

    @property
    def extent(self) -> Extent:
        """Labels and sizes alone."""

    def at(self, label: str, index: SupportsIndex) -> Shape:
        """One index of a dimension, which is dropped; out of range is a ``ValueError``."""

    def select(self, label: str, slice: slice) -> Shape:
        """A range of a dimension, which is kept; one that is empty is a ``ValueError``."""

    def index(self, **coords: SupportsIndex) -> Shape:
        """``at`` for several dimensions."""

    def ranks(self) -> list[int]:
        """The ranks in the whole mesh, in row-major order of this shape."""

    def coordinates(self, rank: SupportsIndex) -> dict[str, int]:
        """The place, by label, of a rank of the whole mesh; one that is not in it is a ``ValueError``."""

    def __len__(self) -> int: ...
    def __hash__(self) -> int: ...
    def _slice(self, dims: dict[str, Any]) -> Shape: ...
    def _split(self, splits: dict[str, list[str]], sizes: dict[str, int]) -> Shape: ...
    def _flatten(self, name: str) -> Shape: ...

class Region:
    """Labels over a ``Slice`` of base ranks, as ``Shape``."""

    def __init__(self, labels: Sequence[str], slice: Slice) -> None: ...
    @property
    def labels(self) -> list[str]:
        """The names of the dimensions."""

    def slice(self) -> Slice:
        """The base ranks."""

    def as_shape(self) -> Shape:
        """The same as a shape."""

    def point_of_base_rank(self, rank: SupportsIndex) -> Point:
        """Where a rank of the whole mesh is in this region; one that is not in it is a ``ValueError``."""

    def __hash__(self) -> int: ...

# What the classes of this package stand on; without these a type checker would take anything for one of them.

class FutureBase:
    def _ready(self) -> bool: ...
    def _poll(self) -> bool: ...
    def _wait(self, timeout: float | None, /) -> None: ...
    def _outcome(self) -> Any: ...
    def _seconds_left(self) -> float | None: ...
    def _give_up(self) -> None: ...
    def _progress(self) -> tuple[Any, int, int, bool | None]: ...

class EndpointBase:
    def _grant(self) -> None: ...
    def _set_label(self, label: str, /) -> None: ...
    def _stream(self, *args: Any, **kwargs: Any) -> list[Any]: ...
    def _send(self, *args: Any, **kwargs: Any) -> None: ...
    def _send_with_port(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None: ...
    def _set_options(self, deadline: float, partial: bool, reducer: int, /) -> None: ...

class RoomLook:
    def __init__(self, mesh_ref: Any, receiver: str, /) -> None: ...
    def look(self) -> float: ...

class PortBase:
    def __init__(self, node: int, index: int, once: bool, rank: int, /) -> None: ...
    def _parts(self) -> tuple[Any, ...]: ...
    def _sender(self) -> int: ...
    def _wait_for_room(self) -> None: ...
    def _has_room(self) -> bool: ...
    def _post(self, value: Any, failed: bool, sender: int, /) -> None: ...
    @classmethod
    def _answering(cls, node: int, token: int, rank: int, /) -> Any: ...

class PortReceiverBase:
    def _receive(self, ranked: bool, /) -> Any: ...
    def _address(self) -> tuple[int, int]: ...

def __getattr__(name: str) -> Any: ...  # the rest of the core, which only this package uses
