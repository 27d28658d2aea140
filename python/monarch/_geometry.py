"""The geometry values, all native: extents, points, slices, shapes, regions.

Two names are one type: ``NDSlice`` is ``Slice`` (the builtin is still ``slice``).
"""

from _collections_abc import Mapping  # collections.abc without the rest of collections (a millisecond)

from monarch._core import Extent, Point, Region, Shape, Slice

__all__ = ["Extent", "NDSlice", "Point", "Region", "Shape", "Slice"]

NDSlice = Slice

# A point is a mapping of label to index, so that mesh.slice(**point), dict(point) and match statements work.
Mapping.register(Point)
