"""Checks of NICs and GPUs, and of the libraries that drive them."""

from __future__ import annotations

import os
import re

from monarch.tools._doctor.machine import Check, Machine, note, ok, problem

_UCX = "libucp.so.0"
_CUDA = "libcuda.so.1"


def nics(machine: Machine) -> Check:
    found = machine.names("/sys/class/infiniband")
    if not found:
        return ok("NICs", "none that do RDMA: buffers between hosts go by TCP")
    text, up = ", ".join(found), [name for name in found if _is_up(machine, name)]
    if not up:
        return note("NICs", f"{text}: no port is active; buffers between hosts go by TCP",
                    "look at the link and its subnet manager (ibstat)")  # fmt: skip
    if not machine.has_library(_UCX):
        return note("NICs", f"{text}, but no {_UCX}: buffers between hosts go by TCP",
                    "install UCX 1.13 or later (libucx0, ucx), or say where it is with LD_LIBRARY_PATH")  # fmt: skip
    folder = "/dev/infiniband"
    uverbs = [name for name in machine.names(folder) if name.startswith("uverbs")]
    if not any(machine.may_use(f"{folder}/{name}") for name in uverbs):
        return note("NICs", f"{text}, but this user has no {folder}/uverbs*: buffers between hosts go by TCP",
                    "in a container --device /dev/infiniband")  # fmt: skip
    return ok("NICs", f"{', '.join(up)}, by UCX where rdma_encrypt is False on both sides")


def _is_up(machine: Machine, name: str) -> bool:
    ports = f"/sys/class/infiniband/{name}/ports"
    return any("ACTIVE" in (machine.read(f"{ports}/{port}/state") or "") for port in machine.names(ports))


def gpus(machine: Machine) -> Check:
    found = [name for name in machine.names("/dev") if re.fullmatch(r"nvidia\d+", name)]
    library = machine.environment.get("MONARCH_CUDA_LIBRARY") or _CUDA
    has_driver = os.path.exists(library) if "/" in library else machine.has_library(library)
    if not found:
        return ok("GPUs", f"none of CUDA{', though there is ' + library if has_driver else ''}")
    text = f"{len(found)} of CUDA"
    if not has_driver:
        return problem("GPUs", f"{text}, but no {library}: their memory cannot be in buffers",
                       "install NVIDIA's driver; in a container --gpus all (nvidia-container-toolkit)")  # fmt: skip
    closed = [name for name in found if not machine.may_use(f"/dev/{name}")]
    if closed:
        return problem("GPUs", f"{text}, but this user must not use /dev/{closed[0]}",
                       "add the user to the device's group, or allow it to the container")  # fmt: skip
    return ok("GPUs", f"{text}, and {library}")
