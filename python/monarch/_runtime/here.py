"""What a process has one of. Simulated processes share these modules, so what is theirs must not stand in a module."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary


class Here:
    """Of one process."""

    def __init__(self) -> None:
        self.root = 0  # the node of the script; 0: this is it
        self.client: Any = None  # the context of its client, once there is one
        self.host_node: int | None = None  # of the host that it was started on; None: the machine
        self.setup_error: BaseException | None = None  # what its bootstrap function has raised
        self.policies: dict[int, Any] = {}  # SpawnOrigins that have a policy, by the number of their mesh
        self.launched: dict[int, Any] = {}  # by node: Launches (_meshes/launchers.py)
        self.launch_loop: Any = None  # on which those are followed
        self.held: list[Any] = []  # failures that somebody may still be told of (_running/unhandled.py)
        self.batches: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()  # of ports with a reducer
        self.flusher: Any = None  # that sends them when they are old (_ports/reducing_port.py)
        self.kept: Any = None  # results that stay here (_meshes/remote_results.py)
        self.leases: WeakValueDictionary[int, Any] = WeakValueDictionary()  # of results elsewhere, by call
        self.keepers: dict[int, tuple[int, int]] = {}  # who gives them out, by node
        self.spawned: list[tuple[list[int], Any, str]] = []  # of meshes: nodes, shape, name (_meshes/active.py)
        self.spawned_limit = 64  # from so many on those that have ended are left out
        self.deciding = threading.Lock()  # who holds it decides about what is held, and what has arrived
        self.mounts: list[str] = []  # whose files some hosts have for imports only (_mounts/hook.py)
        self.stopping: int | None = None  # the program is to end with that status
        self.stopped_at = 0.0  # time.monotonic()


_machine = Here()
find: Callable[[], Here] | None = None  # in a simulation: of the process of the calling thread


def here() -> Here:
    """That of the process that runs this code."""
    return _machine if find is None else find()


def of_machine() -> Here:
    """That of the process of the machine."""
    return _machine
