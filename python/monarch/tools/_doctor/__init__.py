"""Checks of what limits Monarch on a machine. None of them changes anything, needs root or starts a runtime."""

from __future__ import annotations

from monarch.tools._doctor import devices, kernel, limits, programs
from monarch.tools._doctor.machine import Check, Machine

__all__ = ["Check", "Machine", "examine"]

_CHECKS = (
    programs.python, programs.cloudpickle, programs.extension, programs.host_daemon,
    limits.descriptors, limits.processes, limits.memory, limits.shared_memory, limits.locked_memory, limits.core_files,
    kernel.version, kernel.calls, kernel.seccomp, kernel.ptrace, kernel.huge_pages, kernel.clock,
    kernel.user_namespaces, kernel.fuse,
    devices.nics, devices.gpus,
    programs.sockets, programs.runtime_folder,
)  # fmt: skip


def examine(machine: Machine) -> list[Check]:
    """All checks, in the order in which they are shown."""
    return [check(machine) for check in _CHECKS]
