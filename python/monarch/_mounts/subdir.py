"""``$SUBDIR``: the name of a host's own directory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from monarch._runtime.context import context

SUBDIR = "$SUBDIR"


def subdir(place: Mapping[str, int]) -> str:
    """``{"hosts": 0}`` -> ``hosts_0``; of hosts without dimensions ``hosts_0``, too."""
    return "_".join(f"{label}_{index}" for label, index in place.items()) or "hosts_0"


def places(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Of all members of a mesh of these sizes, in rank order."""
    return [dict(zip(sizes, indices)) for indices in itertools.product(*map(range, sizes.values()))]


def with_subdir(path: str) -> str:
    """``path`` for the actor that this is called in."""
    return path.replace(SUBDIR, subdir(context().message_rank)) if SUBDIR in path else path
