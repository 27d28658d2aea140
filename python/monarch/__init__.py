"""Monarch: one script drives processes and actors as meshes.

Layout: the public modules (``monarch.actor``, ...) are thin; what they export lives in private packages beside them, in
layers that import one way, over the native core, ``monarch._core``. From the bottom: ``_values``, ``_config``,
``_errors``, ``_runtime``, ``_actors``, ``_calls``, ``_ports``, ``_bulk``, ``_processes``, ``_meshes``, ``_running``;
``_wiring`` puts them together, ``_programs`` are the main programs of worker processes. Importing this package imports
nothing else: attributes load at first access.
"""

__version__ = "0.1.0"

# Names of later versions of this package. They exist, so that a program that uses one is told so and not left to guess.
_NOT_YET = {
    "Tensor", "Stream", "get_active_stream", "get_active_mesh", "no_mesh", "to_mesh", "slice_mesh", "reduce", "reduce_",
    "remote", "call_on_shard_and_fetch", "fetch_shard", "inspect", "show", "coalescing", "grad_function",
    "grad_generator", "OpaqueRef", "RemoteProcessGroup", "function_resolvers", "world_mesh", "Simulator", "set_meta",
}  # fmt: skip
_LAZY = {
    **dict.fromkeys(("Extent", "NDSlice", "Shape"), "_values.geometry"),
    "Selection": "_values.selection",
    **dict.fromkeys(("empty", "freeze", "thaw"), "_values.frozen"),
    **dict.fromkeys(
        ("clear_runtime_config", "configure", "configured", "get_global_config", "get_runtime_config"), "config"
    ),
}

__all__ = [
    "Extent",
    "NDSlice",
    "Selection",
    "Shape",
    "clear_runtime_config",
    "configure",
    "configured",
    "empty",
    "freeze",
    "get_global_config",
    "get_runtime_config",
    "thaw",
]

TYPE_CHECKING = False  # without importing typing
if TYPE_CHECKING:
    from monarch._values.frozen import empty, freeze, thaw
    from monarch._values.geometry import Extent, NDSlice, Shape
    from monarch._values.selection import Selection
    from monarch.config import clear_runtime_config, configure, configured, get_global_config, get_runtime_config


def __getattr__(name: str):
    from monarch._public import load

    return load(globals(), name, _LAZY, _NOT_YET)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
