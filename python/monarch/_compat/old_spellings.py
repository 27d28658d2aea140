"""What programs say that were written for earlier versions of the API. Each warns, and does what is said today."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable

from monarch._meshes.host_mesh import this_host
from monarch._meshes.local_procs import local_procs
from monarch._meshes.proc_mesh import ProcMesh
from monarch._notices import deprecated
from monarch._processes.bootstrap import default_bootstrap_cmd

__all__ = ["local_proc_mesh", "proc_mesh"]


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
    return local_procs({"hosts": hosts, "gpus": _gpu_count() if gpus is None else gpus})


def _spawn(gpus: int | None, hosts: int, env: dict[str, str] | None, setup: Callable[[], None] | None) -> ProcMesh:
    command = None
    if env:
        command = default_bootstrap_cmd().with_env(env)
    sizes = {"hosts": hosts, "gpus": _gpu_count() if gpus is None else gpus}
    return this_host().spawn_procs(sizes, bootstrap=setup, bootstrap_command=command)


def _gpu_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry])
    return len(glob.glob("/dev/nvidia[0-9]*"))
