"""The time of a simulation in the place of the machine's."""

from __future__ import annotations

import time
from typing import Any

from monarch import _core
from monarch._simulation.patches import Patches

_EPOCH_NS = 1_767_225_600_000_000_000 - 1_000_000_000  # time.time() begins with the year 2026, each time


def patch(patches: Patches) -> None:
    """``time.sleep``, ``time``, ``monotonic``, ``perf_counter``, and those of them that count nanoseconds."""
    ns = _core.simulated_ns
    put = patches.put_for_simulated
    put(time, "sleep", sleep)
    put(time, "monotonic_ns", ns)
    put(time, "perf_counter_ns", ns)
    put(time, "time_ns", lambda: _EPOCH_NS + ns())
    put(time, "monotonic", lambda: ns() / 1e9)
    put(time, "perf_counter", lambda: ns() / 1e9)
    put(time, "time", lambda: (_EPOCH_NS + ns()) / 1e9)


def sleep(seconds: Any) -> None:
    """``time.sleep``."""
    number = float(seconds)
    if not number >= 0:
        raise ValueError("sleep length must be non-negative")
    _core.simulated_sleep(number)
