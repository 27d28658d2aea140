"""Weights on their way from trainers to generators: whole versions, whatever parts of them each side has."""

from __future__ import annotations

import monarch._wiring  # noqa: F401
from monarch._bulk.layout import Box, shard, whole
from monarch._bulk.weights import (
    Moved,
    PushHandle,
    Source,
    SourceHandle,
    Target,
    VersionGone,
    WeightsError,
)
from monarch._public import publish

__all__ = [
    "Box",
    "Moved",
    "PushHandle",
    "Source",
    "SourceHandle",
    "Target",
    "VersionGone",
    "WeightsError",
    "shard",
    "whole",
]

publish(__name__, {name: globals()[name] for name in __all__})
