"""What the script, which owns the meshes of a storm, is told of their failures."""

from __future__ import annotations

import collections
import threading
import time

from faults import Fault
from verdict import LIMIT, Wrong

from monarch.actor import MeshFailure


class Told:
    """In the place of ``unhandled_fault_hook``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reports: dict[str, dict[int, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))

    def __call__(self, failure: MeshFailure) -> None:
        with self._changed:
            for rank in failure.crashed_ranks:
                self._reports[failure.mesh_name][rank].append(failure.report())
            self._changed.notify_all()

    def wait_for(self, mesh: str, rank: int, fault: Fault) -> None:
        deadline = time.monotonic() + LIMIT
        with self._changed:
            while not self._reports[mesh][rank]:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise Wrong(f"nobody was told of rank {rank} of {mesh}: {fault.name}")

    def settle(self, mesh: str, faults: dict[int, list[Fault]]) -> None:
        """The mesh is over: each rank was told at most once, and of what had happened to it."""
        with self._changed:
            told = self._reports.pop(mesh, {})
        for rank, reports in told.items():
            if len(reports) > 1:
                raise Wrong(f"told {len(reports)} times of rank {rank} of {mesh}: {reports}")
            for report in reports:
                if not any(fault.is_reason(report) for fault in faults.get(rank, [])):
                    raise Wrong(f"told of rank {rank} of {mesh} without a reason: {report}")


told = Told()
