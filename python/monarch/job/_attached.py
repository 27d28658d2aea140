"""What this process has of a job's hosts: it is attached to them, mesh by mesh."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from monarch._checks import check_sizes
from monarch.job._trait import JobState, attachments

_HEARD_S = 0.5  # for this process to hear of what has been stopped


def check_meshes(meshes: Any) -> dict[str, int]:
    """``{name: number of hosts}``, as users give it. ``TypeError`` and ``ValueError`` say what is wrong."""
    if not isinstance(meshes, Mapping) or not meshes:
        raise TypeError(f"meshes must be a dict such as {{'hosts': 2}}, but is {meshes!r}")
    check_sizes("meshes", meshes, "host")
    for name in meshes:
        check_mesh_name(name)
    return {name: int(count) for name, count in meshes.items()}


def check_mesh_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a mesh must be a str that is not empty, but is {name!r}")
    # It is part of paths, and of lines.
    if not name.isprintable() or " " in name or "/" in name or name.startswith("."):
        raise ValueError(
            f"a mesh cannot be called {name!r}: its name may have no space, no '/' and nothing that cannot be printed, "
            "and may not begin with a dot"
        )
    if name.startswith("_") or hasattr(JobState, name):
        raise ValueError(f"a mesh cannot be called {name!r}, since state() has something else under that name")


Needed = Callable[[str, int, bool], Sequence[int] | None]
_needed: Needed | None = None


@contextlib.contextmanager
def only(needed: Needed) -> Iterator[None]:
    """What is attached to in this block is left to ``needed``, which is for commands that use a few hosts, once.

    Args:
        needed: a mesh, its number of hosts, whether it is the job's first -> those that are wanted of it; None: all.
    """
    global _needed
    before, _needed = _needed, needed
    try:
        yield
    finally:
        _needed = before


class Attached:
    """Host meshes of a job, by name. For one thread at a time."""

    def __init__(self) -> None:
        self.hosts: dict[str, Any] = {}  # mesh -> HostMesh
        attachments.add(self)

    def is_of(self, job: str | None) -> bool:
        """Whether these are hosts of the job with this ``apply_id``."""
        return any(hosts._in_job[0] == job for hosts in self.hosts.values())

    def attach(self, name: str, addresses: list[str], token_file: str, job: str, wait_s: float | None = None) -> None:
        """Nothing, if it is and has not been stopped. Returns at once.

        Args:
            name: of the mesh.
            addresses: of its hosts.
            token_file: which they want to be shown.
            job: its ``apply_id``.
            wait_s: for a host at which nobody listens, where all are known to have been there.
        """
        from monarch._meshes import workers

        if name not in self.hosts or self.hosts[name]._spawned.ended:
            ranks = None if _needed is None else _needed(name, len(addresses), not self.hosts)
            if ranks is None:
                self.hosts[name] = workers.attach(addresses, token_file, False, name, wait_s=wait_s)
            else:
                self.hosts[name] = workers.attach_some(addresses, ranks, token_file, name, wait_s)
            self.hosts[name]._in_job = (job, name)

    def has_shut_down(self) -> bool:
        """Whether this script has ended some of the hosts."""
        return any(hosts._spawned.shut_down for hosts in self.hosts.values())

    def let_go(self, grace_s: float, what: str = "stop") -> None:
        """This script wants it to end: what it has spawned there does not fail, but stops.

        ``what``: ``"stop"``, or ``"shutdown"``, with which the hosts end too.
        """
        from monarch._meshes.agents import undisturbed

        attached = [hosts for hosts in self.hosts.values() if not hosts._spawned.ended]
        with contextlib.suppress(RuntimeError):  # the client has been shut down, and all of it with that
            endings = [hosts._end(what, grace_s) for hosts in attached]
            until = time.monotonic() + grace_s + _HEARD_S
            undisturbed(lambda: [ending.exception(max(0.0, until - time.monotonic())) for ending in endings])
