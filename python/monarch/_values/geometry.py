"""The geometry values, all native: extents, points, slices, shapes, regions.

Two names are one type: ``NDSlice`` is ``Slice`` (the builtin is still ``slice``).
"""

from collections.abc import Mapping
from types import GenericAlias

from monarch._core import Extent, Point, Region, Shape, Slice

__all__ = ["Extent", "NDSlice", "Point", "Region", "Shape", "Slice"]

NDSlice = Slice

Point.__class_getitem__ = classmethod(GenericAlias)  # type: ignore[attr-defined]  # Point[int], for annotations that are evaluated

# A point is a mapping of label to index, so that mesh.slice(**point), dict(point) and match statements work.
Mapping.register(Point)
