"""Monarch: one script drives processes and actors as meshes.

Layout: the public modules (``monarch.actor``, ...) are thin; what they export lives in private modules beside them
(``_endpoint``, ``_mesh``, ``_future``, ...) over the native core, ``monarch._core``. Importing this package imports
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
    **dict.fromkeys(("Extent", "NDSlice", "Shape"), "_geometry"),
    "Selection": "_selection",
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
    "get_global_config",
    "get_runtime_config",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._geometry import Extent, NDSlice, Shape
    from monarch._selection import Selection
    from monarch.config import clear_runtime_config, configure, configured, get_global_config, get_runtime_config


def __getattr__(name: str):
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"monarch.{_LAZY[name]}"), name)
    if name in _NOT_YET:
        from monarch._not_yet import not_yet

        raise not_yet(f"monarch.{name}")
    raise AttributeError(f"module 'monarch' has no attribute {name!r}")
