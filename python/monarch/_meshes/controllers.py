"""Controllers: actors of the script's own process that are known by name, one for each name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._meshes.actor_mesh import ActorMesh, check_spawn
from monarch._meshes.mesh import whole
from monarch._meshes.proc_mesh import this_proc
from monarch._meshes.spawning import SpawnInfo, spawner_info, substitute
from monarch._runtime import context, runtime

if TYPE_CHECKING:
    from monarch._calls.future import Future

P = ParamSpec("P")
T = TypeVar("T", bound=Actor)

__all__ = ["get_or_spawn_controller"]

_INDEX = 1  # of the registry, among the actors that the script's node makes; Node::new_actor_index() begins later


class Controllers(Actor):
    """Who knows the controllers: an actor of the script's process, made when the first message for it comes."""

    def __init__(self) -> None:
        self.meshes: dict[str, Any] = {}

    @endpoint
    def get(self, name: str, Class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mesh = self.meshes.get(name)
        end = None if mesh is None else _core.actor_end(mesh._ids[0][1])
        if end is not None and end[0]:
            raise ValueError(f"Failure on {name}: {end[1]}")
        if mesh is not None and end is None and _name_of(mesh._class) != _name_of(Class):
            text = (
                f"the controller {name!r} is a {_name_of(mesh._class)}; asked for as a {_name_of(Class)} it is the same"
            )
            warnings.warn(text, stacklevel=2)
        if mesh is None or end is not None:
            token = context.current.set(context.client_context())  # the script owns it
            try:
                mesh = self.meshes[name] = this_proc().spawn(name, Class, *args, **kwargs)
            finally:
                context.current.reset(token)
        return mesh


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def offer() -> None:
    """In the script: from now on its processes may ask for controllers."""
    client = context.client_context().actor_instance
    ids = [_registry_id()]
    info = tuple(SpawnInfo("controllers", (), (), spawner_info(client), (), ()))
    _core.MeshRef(ids, None, True).spawn_lazy((Controllers, (), {}, info))


def _registry_id() -> tuple[int, int]:
    root = runtime.root()
    return root, (root + _INDEX) & (1 << 63) - 1  # actor_index() of base/ids.h


def get_or_spawn_controller(name: str, Class: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """The actor of that name in the script's process; the first who asks makes it, of ``Class`` with these arguments.

    May be called anywhere, in actors too. Requests that come together are merged; later arguments are ignored, and so
    is another class, with a warning in the script. An actor that was stopped is made anew. The future raises
    ``ActorError`` around ``ValueError: Failure on <name>: ...`` once it has failed; an exception in its constructor
    shows at the first call.

    Args:
        name: what it is asked for by.
        Class: an actor class, else ``ValueError``.
        *args: for its constructor; wrong ones raise ``TypeError``.
        **kwargs: likewise.
    """
    runtime.ensure()
    cls, _ = substitute(Class, context.context().actor_instance)
    check_spawn(cls, args, kwargs)
    registry = ActorMesh([_registry_id()], whole([], []), Controllers, "controllers", "<root>")
    return registry.get.call_one(name, cls, args, kwargs)
