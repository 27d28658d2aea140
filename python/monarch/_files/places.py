"""Places of folders below ``$WORKSPACE_DIR``, and of what is in them: nothing may lead out."""

from __future__ import annotations

import contextlib
import os
from typing import TypeVar

from monarch._files.tree import Entry, leads_out

__all__ = ["check_entry", "check_name", "check_places", "default_root", "identities"]

P = TypeVar("P")


def identities(path: str) -> list[tuple[int, int]]:
    """Device and inode of a folder and of those above it, as far as they are there."""
    found, at = [], os.path.realpath(path)
    while True:
        with contextlib.suppress(OSError):
            of = os.stat(at)
            found.append((of.st_dev, of.st_ino))
        if at == os.path.dirname(at):
            return found
        at = os.path.dirname(at)


def default_root() -> str:
    """``$WORKSPACE_DIR``, else ``~/.monarch/workspace``."""
    return os.environ.get("WORKSPACE_DIR") or os.path.join(os.path.expanduser("~"), ".monarch", "workspace")


def check_name(name: object) -> str:
    """The place of a folder, a relative path. ``ValueError`` for what leads elsewhere."""
    if not isinstance(name, str):
        raise TypeError(f"the place of a folder in the workspace must be a str, but is {name!r}")
    place = name.rstrip("/")
    if any(part in ("", ".", "..", ".monarch", ".git", "__pycache__") for part in place.split("/")) or "\0" in place:
        raise ValueError(
            f"a folder cannot be {name!r} in the workspace: only a relative path without '.', '..' and '.monarch'"
        )
    return place


def check_places(wanted: list[tuple[P, str]]) -> dict[P, str]:
    """Folders and their places. ``ValueError`` if one of these is no place, or inside of another."""
    places: dict[P, str] = {}
    for source, name in wanted:
        place = check_name(name)
        for other, taken in places.items():
            if f"{place}/".startswith(f"{taken}/") or f"{taken}/".startswith(f"{place}/"):
                raise ValueError(
                    f"dirs: {str(other)!r} is to be {taken!r} in the workspace and {str(source)!r} {place!r}: they "
                    "must be beside each other. A dict of folders and places says where each is to be"
                )
        places[source] = place
    return places


def check_entry(path: bytes, entry: Entry, entries: dict[bytes, Entry]) -> None:
    """``ValueError`` unless it is in its tree, below folders of it."""
    parts = path.split(b"/")
    is_inside = b"\0" not in path and not any(part in (b"", b".", b"..") for part in parts)
    parent = entries.get(b"/".join(parts[:-1]))
    if not is_inside or not (len(parts) == 1 or (parent is not None and parent.kind == "d")):
        raise ValueError(f"{os.fsdecode(path)!r} is refused: it would be outside of the workspace")
    if entry.kind == "l" and leads_out(path, entry.content):
        raise ValueError(f"{os.fsdecode(path)!r} is refused: it is a link out of the workspace")
