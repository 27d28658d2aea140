"""What commands on the hosts of a saved job have in common: their arguments, and the hosts."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.job import JobTrait


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options that all of them have."""
    command.add_argument(
        "-e", "--env", action="append", default=[], type=variable, metavar="NAME=VALUE",
        help="a variable of its environment; as often as you like",
    )  # fmt: skip
    command.add_argument("--workdir", metavar="FOLDER", help="the working directory, on the host")
    command.add_argument("--kill", action="store_true", help="kill the job when the command has ended")


def variable(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def numbers(text: str) -> dict[str, int]:
    """DIMENSION=NUMBER, several with commas between them."""
    found = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not name or not equals or not number.isdecimal():
            raise argparse.ArgumentTypeError(f"{text!r} is not DIMENSION=NUMBER,DIMENSION=NUMBER")
        if name in found:
            raise argparse.ArgumentTypeError(f"{text!r} has {name!r} twice")
        found[name] = int(number)
    return found


def attach(job: JobTrait, mesh: str | None, point: dict[str, int] | None, is_all: bool = False) -> dict[str, Any]:
    """Its meshes of hosts, by name; nothing is allocated. ``RuntimeError`` if it does not run any more.

    Each host that is attached to starts what serves this command there, so those that are not used are left alone.

    Args:
        job: as it was saved.
        mesh: which will be used; None: the first one.
        point: with ``hosts``: only that one will be; without: all of the mesh.
        is_all: all meshes will be.
    """

    def needed(name: str, count: int, is_first: bool) -> list[int] | None:
        if is_all:
            return None
        if not (is_first if mesh is None else name == mesh):
            return []
        host = (point or {}).get("hosts")
        if host is None or not 0 <= host < count:  # what there is not is said where it is looked for
            return None
        return [host]

    running = job._running
    if running is not None and running._runs_elsewhere():
        raise RuntimeError("the active job runs in another container of this machine: commands on its hosts run there")
    if running is None or not running._is_running_for(needed):
        why = "" if running is None or not (lost := running._loses()) else f": {lost}"
        raise RuntimeError(
            f"the active job is no longer running or healthy{why}. 'monarch apply', or a script's job.state(), has it "
            "anew; 'monarch kill' ends what is left of it"
        )
    import monarch._wiring  # noqa: F401
    from monarch._runtime import runtime

    runtime.ensure(processes=False)  # none are started from here
    from monarch.job import _attached

    with contextlib.nullcontext() if is_all else _attached.only(needed):
        return running._state()._hosts


def find(meshes: dict[str, Any], name: str | None) -> tuple[str, Any]:
    """That mesh of the job, or the first one, with its name."""
    if name is None:
        return next(iter(meshes.items()))
    if name not in meshes:
        raise ValueError(f"{name!r} is not a valid host mesh name. Available names: {', '.join(meshes)}")
    return name, meshes[name]


def first_point(hosts: Any) -> dict[str, int]:
    """The first host."""
    return dict.fromkeys(hosts.sizes, 0)
