"""Checks of what the kernel has, and of what it lets this user do."""

from __future__ import annotations

import errno
import os
import re

from monarch.tools._doctor.machine import Check, Machine, note, ok, problem

_OLDEST = (5, 3)  # pidfd_open
_PROFILE = "Linux {} or later, and a seccomp profile that allows it (--security-opt seccomp=... of the container)"
# Call -> the first Linux that has it, whether nothing works without, what is lost.
_CALLS = {
    "pidfd_open": ("5.3", True, "ends of processes are not seen"),
    "memfd_create": ("3.17", True, "processes cannot share memory"),
    "get_robust_list": ("2.6.17", False, "the end of a process is seen some ms later"),
    "futex_waitv": ("5.16", False, "the end of a process is seen some ms later"),
    "process_vm_readv": ("3.2", False, "buffers of ordinary memory are copied once or twice more"),
}
_GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "hyperv_clocksource_vdso")


def version(machine: Machine) -> Check:
    text = machine.read("/proc/sys/kernel/osrelease") or ""
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        return note("kernel", "its version cannot be read (/proc/sys/kernel/osrelease)")
    if (int(found[1]), int(found[2])) < _OLDEST:
        return problem("kernel", f"Linux {text}", f"Linux {_OLDEST[0]}.{_OLDEST[1]} or later")
    return ok("kernel", f"Linux {text}")


def calls(machine: Machine) -> Check:
    """One line: the worst that is missing."""
    missing = {name: code for name in _CALLS if (code := machine.call(name)) != 0}
    if not missing:
        return ok("system calls", ", ".join(_CALLS))
    vital = any(_CALLS[name][1] for name in missing)
    why = {errno.ENOSYS: "not there", errno.EPERM: "forbidden", errno.EACCES: "forbidden"}
    text = "; ".join(f"{name} {why.get(code, os.strerror(code))}: {_CALLS[name][2]}" for name, code in missing.items())
    since = max((_CALLS[name][0] for name in missing), key=lambda text: [int(part) for part in text.split(".")])
    return (problem if vital else note)("system calls", text, _PROFILE.format(since))


def ptrace(machine: Machine) -> Check:
    scope = machine.number("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None or scope == 0:
        return ok("ptrace", "not restricted by Yama")
    if scope == 1:
        return ok(
            "ptrace", "Yama's ptrace_scope is 1: Monarch's processes may copy from each other; debuggers need root"
        )
    text = f"Yama's ptrace_scope is {scope}: no copies by process_vm_readv, one or two more for large buffers; "
    text += "no gdb and py-spy on workers (dump_stacks works)"
    after = (
        "sysctl kernel.yama.ptrace_scope=1" if scope == 2 else "kernel.yama.ptrace_scope=1 in sysctl.d, and a restart"
    )
    return note("ptrace", text, after)


def seccomp(machine: Machine) -> Check:
    mode = machine.field("/proc/self/status", "Seccomp")
    if mode == "2":
        return ok("seccomp", "a filter is there; which of Monarch's calls it forbids is said above")
    if mode == "1":
        return problem("seccomp", "strict: no process can be started", "run without it")
    return ok("seccomp", "no filter")


def huge_pages(machine: Machine) -> Check:
    text = machine.read("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text or "")
    if chosen is None or chosen[1] == "never":
        return note("huge pages", "none: large messages are copied into small pages, which is slower",
                    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root")  # fmt: skip
    return ok("huge pages", f"{chosen[1]}: for large messages")


def clock(machine: Machine) -> Check:
    source = machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    built = os.path.getmtime(__file__)
    if machine.now < built - 86400:
        return problem("clock", f"it is {int((built - machine.now) / 86400)} days before the day of this installation: "
                       "certificates of TLS are not valid yet", "set the clock (timedatectl set-ntp true)")  # fmt: skip
    if source is not None and source not in _GOOD_CLOCKS:
        return note("clock", f"{source}: to read it is a system call, which Monarch does for each message",
                    "boot with clocksource=tsc, where the processor has a stable one")  # fmt: skip
    return ok("clock", source or "the kernel does not say which")


def user_namespaces(machine: Machine) -> Check:
    most = machine.number("/proc/sys/user/max_user_namespaces")
    allowed = machine.number("/proc/sys/kernel/unprivileged_userns_clone")
    restricted = machine.number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if machine.user != 0 and (most in (None, 0) or allowed == 0 or restricted == 1):
        return note("user namespaces", "none for this user: containers without root, for a proc_launcher, need them",
                    "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1")  # fmt: skip
    return ok("user namespaces", "none, but this is root" if not most else "allowed")


def fuse(machine: Machine) -> Check:
    advice = "modprobe fuse; in a container --device /dev/fuse --cap-add SYS_ADMIN"
    if not os.path.exists(machine.path("/dev/fuse")):
        return note("FUSE", "no /dev/fuse: remote folders cannot be mounted", advice)
    if not machine.may_use("/dev/fuse"):
        return note("FUSE", "/dev/fuse is not for this user: remote folders cannot be mounted", "chmod 666 /dev/fuse")
    return ok("FUSE", "/dev/fuse is there")
