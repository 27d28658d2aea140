"""Which part of a global array a process has: boxes, and how one set of boxes is filled from another."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Sizes = tuple[int, ...]


class Box(NamedTuple):
    """A block of an array: where it begins, and how many items it has, for each dimension."""

    starts: Sizes
    sizes: Sizes

    @property
    def items(self) -> int:
        """How many it has."""
        return math.prod(self.sizes)

    def cut(self, other: Box) -> Box | None:
        """What both have; None: nothing."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.starts, self.sizes, other.starts, other.sizes))
        sizes = tuple(end - start for start, end in zip(starts, ends))
        return Box(starts, sizes) if all(size > 0 for size in sizes) else None

    def inside(self, other: Box) -> Box:
        """The same block, counted from where ``other`` begins."""
        return Box(tuple(a - b for a, b in zip(self.starts, other.starts)), self.sizes)

    def without(self, other: Box) -> Iterator[Box]:
        """What is left of it, in boxes that do not overlap; ``other`` lies within."""
        starts, sizes = list(self.starts), list(self.sizes)
        for dim in range(len(sizes)):
            end, other_end = starts[dim] + sizes[dim], other.starts[dim] + other.sizes[dim]
            for low, high in ((starts[dim], other.starts[dim]), (other_end, end)):
                if low < high:
                    part = starts[:dim] + [low] + starts[dim + 1 :], sizes[:dim] + [high - low] + sizes[dim + 1 :]
                    yield Box(tuple(part[0]), tuple(part[1]))
            starts[dim], sizes[dim] = other.starts[dim], other.sizes[dim]


def whole(shape: Sequence[int]) -> Box:
    """All of an array."""
    return Box((0,) * len(shape), tuple(shape))


def shard(shape: Sequence[int], dim: int, rank: int, ranks: int) -> Box:
    """What a rank has of an array that is cut along one dimension, as ``torch.chunk`` and DTensor do.

    All have ``ceil(size / ranks)`` items of it but the last ones, which have fewer, perhaps none.

    Args:
        shape: of the whole.
        dim: from 0 on; or from the last, -1, on.
        rank: from 0 on.
        ranks: how many there are.

    Raises ``ValueError`` for a rank or a dimension that there is not, ``TypeError`` for what is no int.
    """
    shape = tuple(map(operator.index, shape))
    dim, rank, ranks = map(operator.index, (dim, rank, ranks))
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} of {ranks}")
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"an array of shape {tuple(shape)} has no dimension {dim}")
    dim %= len(shape)
    each = -(-shape[dim] // ranks)
    start = min(rank * each, shape[dim])
    starts, sizes = [0] * len(shape), list(shape)
    starts[dim], sizes[dim] = start, min(each, shape[dim] - start)
    return Box(tuple(starts), tuple(sizes))


def box_of_dtensor(tensor: Any) -> Box:
    """Of the local shard, by its mesh and placements. ``ValueError`` for placements that are neither of these two."""
    box = whole(tensor.shape)
    mesh = tensor.device_mesh
    for mesh_dim, placement in enumerate(tensor.placements):
        if placement.is_shard():
            here = shard(box.sizes, placement.dim, mesh.get_local_rank(mesh_dim), mesh.size(mesh_dim))
            box = Box(tuple(a + b for a, b in zip(box.starts, here.starts)), here.sizes)
        elif not placement.is_replicate():
            raise ValueError(
                f"a DTensor with the placement {placement} has no shards to be sent: redistribute it first"
            )
    return box


def pieces(sizes: Sequence[int], itemsize: int, block: Box) -> tuple[int, int, list[tuple[int, int]]]:
    """Where the bytes of a block of an array of these sizes are, in memory that has its items in order.

    -> the offset of the first, how many lie one behind the other, and (count, stride) of these runs, outermost first.
    """
    offset, stride = 0, itemsize
    dims: list[tuple[int, int]] = []
    for start, size, most in zip(reversed(block.starts), reversed(block.sizes), reversed(sizes)):
        offset += start * stride
        if size > 1:
            dims.insert(0, (size, stride))
        stride *= most
    run = itemsize
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    return offset, run, dims


def cover(wanted: Box, offered: Sequence[tuple[int, Box]]) -> list[tuple[int, Box]]:
    """Who gives which part of ``wanted``, each item once; of several that have it the first in the list.

    ``LookupError`` if nobody has some of it.
    """
    parts: list[tuple[int, Box]] = []
    missing = [wanted] if wanted.items else []
    for who, box in offered:
        still = []
        for piece in missing:
            common = piece.cut(box)
            if common is None:
                still.append(piece)
            else:
                parts.append((who, common))
                still.extend(piece.without(common))
        missing = still
        if not missing:
            return parts
    if missing:
        raise LookupError(f"nobody has the items from {missing[0].starts} on, {missing[0].sizes} of them")
    return parts
