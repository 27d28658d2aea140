"""What programs say that were written for earlier versions of the API. Each warns, and does what is said today."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._future import Future
    from monarch._mesh import ProcMesh

__all__ = ["local_proc_mesh", "proc_mesh"]


def deprecated(text: str, stacklevel: int = 3) -> None:
    """Warns whoever has called the caller of this."""
    import warnings

    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def deprecated_module(name: str) -> None:
    """Warns whoever imports the module that calls this."""
    deprecated(f"{name} is deprecated, please import from monarch.actor instead.", stacklevel=4)


def proc_mesh(
    *,
    gpus: int | None = None,
    hosts: int = 1,
    env: dict[str, str] | None = None,
    setup: Callable[[], None] | None = None,
) -> ProcMesh:
    """Old spelling of ``this_host().spawn_procs(per_host={"hosts": hosts, "gpus": gpus}, bootstrap=setup)``.

    Args:
        gpus: how many processes on each host; none: as many as ``CUDA_VISIBLE_DEVICES`` names, else as there are.
        hosts: how many hosts.
        env: variables that are set in the processes.
        setup: a function that runs once in each process, before any actor is made there.
    """
    deprecated("proc_mesh() is an old spelling of this_host().spawn_procs(per_host={...})")
    return _spawn(gpus, hosts, env, setup)


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """As ``proc_mesh``, in this process: ``monarch.testing.local_procs``."""
    deprecated('local_proc_mesh() is an old spelling of monarch.testing.local_procs({"hosts": ..., "gpus": ...})')
    from monarch._local import local_procs

    return local_procs({"hosts": hosts, "gpus": _gpu_count() if gpus is None else gpus})


def _spawn(gpus: int | None, hosts: int, env: dict[str, str] | None, setup: Callable[[], None] | None) -> ProcMesh:
    from monarch._host_mesh import this_host

    command = None
    if env:
        from monarch._bootstrap import default_bootstrap_cmd

        command = default_bootstrap_cmd().with_env(env)
    sizes = {"hosts": hosts, "gpus": _gpu_count() if gpus is None else gpus}
    return this_host().spawn_procs(sizes, bootstrap=setup, bootstrap_command=command)


def _gpu_count() -> int:
    import glob
    import os

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def constructor_arguments(Class: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """``spawn(..., id_func=f)``: a constructor that takes it gets it, for others it once was an option of the mesh."""
    import inspect

    if Class.__init__ is not object.__init__:  # whose signature claims to take anything
        parameters = inspect.signature(Class.__init__).parameters
        if "id_func" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return kwargs
    deprecated("spawn(id_func=...) has no effect: ranks are numbered by the mesh", stacklevel=4)
    return {name: value for name, value in kwargs.items() if name != "id_func"}


class Inner:
    """What ``Future._take_inner()`` gives: the work behind a future, for programs that start it by hand.

    Here work starts at the call, so there is nothing to start, and its handle is the future itself.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def spawn_handle(self) -> Future[Any]:
        """Something to ``await`` or to ``get()``."""
        return self._future
