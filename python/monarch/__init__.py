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
    "grad_generator", "OpaqueRef", "RemoteProcessGroup", "function_resolvers", "world_mesh", "Selection", "Simulator",
    "set_meta", "configure", "configured", "get_global_config", "get_runtime_config", "clear_runtime_config",
}  # fmt: skip
_GEOMETRY = ("Extent", "Shape", "NDSlice")

__all__ = ["Extent", "NDSlice", "Shape"]


def __getattr__(name: str):
    if name in _GEOMETRY:
        from monarch import _geometry

        return getattr(_geometry, name)
    if name in _NOT_YET:
        raise NotImplementedError(f"monarch.{name} is not there yet; README.md lists what is.")
    raise AttributeError(f"module 'monarch' has no attribute {name!r}")
