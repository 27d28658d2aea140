"""What is sent to make an actor, and what may be spawned."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch._notices import deprecated

# ---- Records: what travels are plain tuples of tuples and scalars, which need no pickle ----


class SpawnerInfo(NamedTuple):
    """What a new actor is told of who has spawned it."""

    name: str
    rank: int
    labels: tuple[str, ...]  # of the mesh that it is in
    sizes: tuple[int, ...]
    text: str  # its str(): the chain of who made whom


class ProcMeshParts(NamedTuple):
    """A mesh of processes, as it travels."""

    nodes: tuple[int, ...]  # by base rank
    labels: tuple[str, ...]
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    name: str
    job: str | None
    local: int = 0
    host: Any = None  # HostMesh, where the processes are not on the machine of whoever asks


class SpawnInfo(NamedTuple):
    """What a new actor is told about itself."""

    name: str
    labels: tuple[str, ...]  # of its mesh
    sizes: tuple[int, ...]
    spawner: tuple[Any, ...]  # SpawnerInfo
    procs: tuple[Any, ...]  # ProcMeshParts of the mesh that it was spawned on; empty: none
    substitutes: tuple[tuple[Any, Any], ...]  # of patch_actor, in force when it was spawned


def spawner_info(spawner: Any) -> tuple[Any, ...]:
    rank = spawner.rank
    extent = rank.extent
    return tuple(SpawnerInfo(spawner.name, rank.rank, tuple(extent.labels), tuple(extent.sizes), str(spawner)))


# ---- Mocks ----

patches: list[tuple[Any, Any]] = []  # monarch.testing.patch_actor: (original, mock), the last counts


def substitute(Class: Any, spawner: Any) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """What to spawn instead of ``Class``, and the substitutes that the new actor is to use in its turn.

    An actor uses those that were in force when it was spawned, the client those that are now. A mock's own spawns of
    what it stands for are not replaced: it may wrap the real thing.
    """
    in_force = tuple(patches) if spawner._creator is None else spawner._substitutes
    if not in_force:
        return Class, in_force
    for original, mock in reversed(in_force):
        if original is Class:
            return mock, tuple(pair for pair in in_force if pair[0] is not original)
    return Class, in_force


# ---- Old spellings ----


def constructor_arguments(Class: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """``spawn(..., id_func=f)``: a constructor that takes it gets it, for others it once was an option of the mesh."""
    import inspect

    if Class.__init__ is not object.__init__:  # whose signature claims to take anything
        parameters = inspect.signature(Class.__init__).parameters
        if "id_func" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return kwargs
    deprecated("spawn(id_func=...) has no effect: ranks are numbered by the mesh", stacklevel=4)
    return {name: value for name, value in kwargs.items() if name != "id_func"}
