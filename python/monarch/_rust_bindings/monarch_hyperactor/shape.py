"""See ``monarch._src``."""

from monarch._geometry import Extent, Point, Region, Shape, Slice

__all__ = ["Extent", "Point", "Region", "Shape", "Slice"]
