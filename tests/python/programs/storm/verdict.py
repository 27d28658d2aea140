"""Whether what came back is right, or an error that names its real cause. Everything else ends the storm."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from typing import Any

from faults import Fault

from monarch.actor import ActorError, SupervisionError

LIMIT = 30.0  # seconds that anything may take on a busy machine


class Wrong(Exception):
    """A promise has been broken."""


class Tally:
    """What has happened so far; shared by the threads of a storm."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, what: str, count: int = 1) -> None:
        with self._lock:
            self._counts[what] += count

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self._counts.items()))


tally = Tally()


def settle(what: str, get: Callable[[float], Any], right: Callable[[Any], bool], faults: Iterable[Fault]) -> bool:
    """Whether it was answered, rightly; else with an error that one of these faults explains."""
    try:
        answer = get(LIMIT)
    except TimeoutError as error:
        raise Wrong(f"{what}: nothing within {LIMIT} s {getattr(error, '__notes__', '')}") from error
    except (SupervisionError, ActorError) as error:
        explain(what, error, faults)
        return False
    if not right(answer):
        raise Wrong(f"{what}: a wrong answer: {str(answer)[:300]}")
    tally.add("answers")
    return True


def explain(what: str, error: SupervisionError | ActorError, faults: Iterable[Fault]) -> None:
    reasons = [fault for fault in faults if fault.is_reason(str(error))]
    if not reasons:
        named = ", ".join(fault.name for fault in faults) or "nothing"
        raise Wrong(f"{what}: {type(error).__name__} for which there is no reason ({named}): {error}") from error
    tally.add(f"failed of {reasons[0].name}")
