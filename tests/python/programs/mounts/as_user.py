"""Mounts and unmounts as another user than root. Arguments: where, and an interpreter that everybody may run."""

import os
import stat
import sys

from monarch._mounts.kernel import Attributes
from monarch._mounts.points import Point
from monarch._processes import launch


class Hello:
    valid_s, keeps = 1.0, True

    def attributes(self, path: str) -> Attributes:
        if path not in ("", "hello"):
            raise FileNotFoundError(2, "")
        return Attributes(stat.S_IFREG | 0o444 if path else stat.S_IFDIR | 0o555, 6 if path else 0, 0)

    def names(self, path: str) -> list[tuple[str, int]]:
        return [("hello", stat.S_IFREG)]

    def read(self, path: str, offset: int, size: int) -> bytes:
        return b"hello\n"[offset : offset + size]

    def target(self, path: str) -> str:
        return ""


launch.default_python = sys.argv[2]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
point = Point(sys.argv[1], Hello())
with open(f"{sys.argv[1]}/hello") as file:
    assert file.read() == "hello\n"
point.close()
