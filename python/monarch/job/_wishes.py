"""What jobs are asked for that is not there yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class TelemetryConfig:
    """What is wanted of telemetry, which is not there yet.

    ``retention_secs``, ``snapshot_interval_secs``: seconds, 0: off.
    """

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


@dataclass
class MeshAdminConfig:
    """What is wanted of the API of administration, which is not there yet. ``admin_addr``: where it listens."""

    admin_addr: str | None = None


def check(kind: type, config: Any, fields: dict[str, Any]) -> None:
    """Refuses what is none. ``TypeError``."""
    if config is not None and not isinstance(config, kind):
        raise TypeError(f"config must be a {kind.__name__}, but is {config!r}")
    kind(**fields)
