"""See ``monarch._src``."""

from monarch._values.geometry import Extent, Point, Region, Shape, Slice

__all__ = ["Extent", "Point", "Region", "Shape", "Slice"]
