"""Checks of what there is only so much of."""

from __future__ import annotations

from monarch.tools._doctor.machine import UNLIMITED, Check, Machine, Usage, note, ok, problem, size

# In the script: so many for each process that it has started, and for itself (docs/concepts/processes.md, How many).
_DESCRIPTORS_EACH = 5
_DESCRIPTORS_OWN = 65
_FEW_DESCRIPTORS = 1024
_TOO_FEW_DESCRIPTORS = 128
_FEW_TASKS = 1000
_TOO_FEW_TASKS = 100
_LITTLE_MEMORY = 2 << 30
_TOO_LITTLE_MEMORY = 256 << 20
_LITTLE_SHM = 1 << 30


def descriptors(machine: Machine) -> Check:
    soft, hard = machine.limit("Max open files")
    count = max(0, (hard - _DESCRIPTORS_OWN) // _DESCRIPTORS_EACH)
    text = f"{_named(soft)} open files"
    text += f", which Monarch raises to {_named(hard)} where it must" if hard != soft else ""
    text += ": no limit for processes" if hard == UNLIMITED else f": about {count} processes of one script"
    advice = "raise the hard limit: LimitNOFILE= of the service, --ulimit nofile= of the container, or limits.conf"
    used, most = (_ints(machine.read("/proc/sys/fs/file-nr")) + [0, 0, 0])[:3:2]
    if most and used > 0.95 * most:
        return problem("descriptors", f"{used} of {most} open files of the whole machine are in use",
                       "end what holds them, or raise fs.file-max (sysctl)")  # fmt: skip
    if hard < _TOO_FEW_DESCRIPTORS:
        return problem("descriptors", text, advice)
    return note("descriptors", text, advice) if hard <= _FEW_DESCRIPTORS else ok("descriptors", text)


def processes(machine: Machine) -> Check:
    """Threads count too, each of them."""
    left: list[tuple[int, str, str]] = []
    if machine.user != 0:  # nobody counts root's
        soft, _ = machine.limit("Max processes")
        left.append((soft, "ulimit -u", "raise it: ulimit -u, LimitNPROC= of the service, or limits.conf"))
    load = (machine.read("/proc/loadavg") or "").split()
    in_use = int(load[3].partition("/")[2]) if len(load) > 3 else 0
    for name in ("pid_max", "threads-max"):
        if (most := machine.number(f"/proc/sys/kernel/{name}")) is not None:
            left.append((most - in_use, f"kernel.{name}", f"raise it: sysctl kernel.{name}"))
    group = machine.cgroup("pids", "pids.max", "pids.current", ("pids.max", "pids.current"))
    if group is not None:
        where = f"pids.max of the cgroup, {group.limit} with {group.used} in use"
        left.append(
            (group.limit - group.used, where, "raise it: TasksMax= of the service, --pids-limit of the container")
        )
    count, by, advice = min(left, default=(UNLIMITED, "", ""))
    if count == UNLIMITED:
        return ok("processes", "no limit")
    text = f"at most {max(0, count)} processes and threads more ({by}); a worker has several threads"
    if count < _TOO_FEW_TASKS:
        return problem("processes", text, advice)
    return note("processes", text, advice) if count < _FEW_TASKS else ok("processes", text)


def memory(machine: Machine) -> Check:
    total, free = _kib(machine, "MemTotal"), _kib(machine, "MemAvailable")
    group = machine.cgroup("memory", "memory.max", "memory.current", ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    where = "of the machine"
    if group is not None and (total is None or group.limit < total):
        total, free, where = group.limit, _free_in_group(machine, group, free), "that the cgroup allows"
    if total is None or free is None:
        return note("memory", "how much there is cannot be read (/proc/meminfo)")
    text = f"{size(free)} free of {size(total)} {where}"
    advice = "end what uses it, or allow more; who goes over the limit of a cgroup is killed"
    if free < _TOO_LITTLE_MEMORY:
        return problem("memory", text, advice)
    if machine.read("/proc/sys/vm/overcommit_memory") == "2":
        advice = "sysctl vm.overcommit_memory=0, or memory enough for all that is mapped and not used"
        return note("memory", text + "; vm.overcommit_memory is 2: forked processes count in full", advice)
    return note("memory", text, advice) if free < _LITTLE_MEMORY else ok("memory", text)


def shared_memory(machine: Machine) -> Check:
    found = machine.space(machine.path("/dev/shm"))
    what = "multiprocessing, NCCL and torch's DataLoader need it; Monarch itself does not"
    advice = "mount a tmpfs there; in a container --shm-size=16g, or --ipc=host"
    if found is None:
        return note("/dev/shm", f"not there: {what}", advice)
    total, free = found
    text = f"{size(free)} free of {size(total)}"
    return note("/dev/shm", f"{text}: {what}", advice) if free < _LITTLE_SHM else ok("/dev/shm", text)


def locked_memory(machine: Machine) -> Check:
    soft, _ = machine.limit("Max locked memory")
    text = "no limit" if soft == UNLIMITED else f"{size(soft)} (ulimit -l)"
    if soft < UNLIMITED and machine.names("/sys/class/infiniband"):
        return note("locked memory", f"{text}: a NIC that does RDMA can reach no more than that",
                    "ulimit -l unlimited, LimitMEMLOCK=infinity, or --ulimit memlock=-1 of the container")  # fmt: skip
    return ok("locked memory", text)


def core_files(machine: Machine) -> Check:
    soft, _ = machine.limit("Max core file size")
    pattern = machine.read("/proc/sys/kernel/core_pattern") or "core"
    if pattern.startswith("|"):
        return ok("core files", f"go to {pattern[1:].split()[0]}")
    if soft == 0:
        return ok("core files", "none are written (ulimit -c 0); a crash shows stacks without them")
    return note("core files", f"a crash writes {pattern!r}, up to {'all memory' if soft == UNLIMITED else size(soft)}, "
                "before others hear of it", "ulimit -c 0, if nobody reads them")  # fmt: skip


def _named(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else str(limit)


def _ints(text: str | None) -> list[int]:
    return [int(word) for word in (text or "").split() if word.isdigit()]


def _kib(machine: Machine, name: str) -> int | None:
    found = _ints(machine.field("/proc/meminfo", name))
    return found[0] * 1024 if found else None


def _free_in_group(machine: Machine, group: Usage, free: int | None) -> int:
    left = max(0, group.limit - group.used)
    return left if free is None else min(left, free)
