"""For users' own tests: actors without processes, and stand-ins for actor classes."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

import monarch._wiring  # noqa: F401
from monarch._actors.actor import Actor
from monarch._meshes import spawning
from monarch._meshes.local_procs import LocalProcMesh, local_procs
from monarch._public import publish
from monarch._simulation.world import SimulatedEvent, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["LocalProcMesh", "SimulatedEvent", "local_procs", "patch_actor", "simulate"]


class patch_actor:
    """``with patch_actor(Original, Mock):`` spawns ``Mock`` where the code under test spawns ``Original``.

    It holds for ``spawn`` and ``get_or_spawn_controller``, with the arguments of the original's constructor, on every
    kind of mesh. ``async with`` is the same. Also a decorator, of ``def`` and ``async def`` functions. Patches nest; of
    several for one class the innermost counts, and a mock is not replaced in its turn. It ends with its block, after
    exceptions too.

    It is in force for the whole script, in all its threads, and travels: an actor that is spawned meanwhile, in a
    worker too, spawns ``Mock`` as well, for all its life, and so do those that it spawns. Actors that were there before
    are not touched. ``Mock`` itself, where it stands for ``Original``, may spawn the real one: it may wrap it.

    Args:
        original: an actor class, Python or C++.
        mock: the actor class to be spawned in its place; any, it need not be a subclass.

    Raises:
        TypeError: if one of them is no actor class.
    """

    def __init__(self, original: type, mock: type) -> None:
        for label, cls in (("original", original), ("mock", mock)):
            if not (isinstance(cls, type) and (issubclass(cls, Actor) or hasattr(cls, "_native_table"))):
                raise TypeError(f"patch_actor(original, mock) takes two actor classes, but {label} is {cls!r}")
        self._pair = (original, mock)

    def __enter__(self) -> None:
        spawning.patches.append(self._pair)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def __exit__(self, *_: object) -> None:
        # The innermost of its own: blocks may end in another order than they began.
        for place in range(len(spawning.patches) - 1, -1, -1):
            if spawning.patches[place] is self._pair:
                del spawning.patches[place]
                return

    def __call__(self, function: F) -> F:
        """Decorates a function: the patch is in force while it runs."""
        if isinstance(function, type):
            raise TypeError("patch_actor decorates functions, not classes")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("patch_actor cannot decorate a generator: say `with patch_actor(...):` around its yield")
        if not inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            def patched(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

            return patched  # type: ignore[return-value]

        @functools.wraps(function)
        async def patched_async(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return patched_async  # type: ignore[return-value]


publish(__name__, {name: globals()[name] for name in __all__})
