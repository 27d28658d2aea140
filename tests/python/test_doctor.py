"""`monarch doctor`, on machines that are files of a folder."""

import dataclasses
import errno
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monarch.tools._doctor import Machine, examine
from monarch.tools._doctor.machine import UNLIMITED
from monarch.tools.cli import main

LIMIT = 30
GIB = 1 << 30
FILES = {
    "proc/self/limits": """\
Limit                     Soft Limit           Hard Limit           Units
Max core file size        0                    unlimited            bytes
Max processes             96365                96365                processes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
""",
    "proc/self/status": "Name:\tpython\nSeccomp:\t0\nSeccomp_filters:\t0\n",
    "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
    "proc/meminfo": "MemTotal:       65536000 kB\nMemFree:        1000 kB\nMemAvailable:   60000000 kB\n",
    "proc/loadavg": "0.10 0.20 0.30 1/500 4711\n",
    "proc/sys/fs/file-nr": "1984\t0\t9223372036854775807\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    "proc/sys/kernel/threads-max": "500000\n",
    "proc/sys/kernel/core_pattern": "core\n",
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
    "proc/sys/kernel/yama/ptrace_scope": "1\n",
    "proc/sys/user/max_user_namespaces": "96365\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/pids.max": "max\n",
    "dev/fuse": "",
    "etc/ld.so.cache": "glibc-ld.so.cache1.1\0libc.so.6\0/lib/libc.so.6\0",
}
NIC = {
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "dev/infiniband/uverbs0": "",
    "usr/lib/libucp.so.0": "",
}
GPU = {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "etc/ld.so.cache": "..\0libcuda.so.1\0.."}


def write(root, files):
    """None: no such file."""
    for name, text in files.items():
        path = Path(root, name)
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@pytest.fixture
def machine(tmp_path):
    """Nothing is wrong with it."""
    write(tmp_path, FILES)
    (tmp_path / "tmp").mkdir()
    return Machine(
        root=str(tmp_path), environment={}, call=lambda name: 0, space=lambda path: (64 * GIB, 32 * GIB),
        run=lambda command: (0, "usage: monarch-hostd ADDRESS\n"), now=time.time(),
    )  # fmt: skip


def of(machine, name):
    (found,) = [check for check in examine(machine) if check.name == name]
    return found


@pytest.mark.feature(96, "the commands")
def test_nothing_is_wrong_with_a_good_machine(machine):
    found = examine(machine)
    assert [check for check in found if check.level != "ok"] == []
    assert len({check.name for check in found}) == len(found) == 22
    assert of(machine, "descriptors").text == (
        "1024 open files, which Monarch raises to 524288 where it must: about 104844 processes of one script"
    )


def limits(name, value):
    return {"proc/self/limits": f"{name:<26}{value:<21}{value:<21}units\n"}


@pytest.mark.parametrize(
    "name, level, words, files",
    [
        ("descriptors", "note", "about 191 processes.*LimitNOFILE", limits("Max open files", 1024)),
        ("descriptors", "problem", "about 0 processes.*LimitNOFILE", limits("Max open files", 64)),
        ("descriptors", "problem", "990 of 1000 open files.*fs.file-max", {"proc/sys/fs/file-nr": "990\t0\t1000\n"}),
        ("processes", "note", "at most 400 .*kernel.threads-max.*sysctl", {"proc/sys/kernel/threads-max": "900\n"}),
        ("processes", "problem", "at most 12 .*kernel.pid_max.*sysctl", {"proc/sys/kernel/pid_max": "512\n"}),
        ("processes", "problem", "at most 10 .*of the cgroup, 100 with 90 in use.*--pids-limit", {
            "sys/fs/cgroup/user.slice/pids.max": "100\n", "sys/fs/cgroup/user.slice/pids.current": "90\n"}),
        ("processes", "problem", "at most 20 .*cgroup", {
            "proc/self/cgroup": "8:pids:/docker/abc\n4:memory:/docker/abc\n",
            "sys/fs/cgroup/pids/pids.max": "50\n", "sys/fs/cgroup/pids/pids.current": "30\n"}),
        ("memory", "note", "1.0 GiB free of 2.0 GiB that the cgroup allows.*killed", {
            "sys/fs/cgroup/user.slice/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/user.slice/memory.current": f"{2 * GIB}\n",
            "sys/fs/cgroup/user.slice/memory.stat": f"anon 5\ninactive_file {GIB}\n"}),
        ("memory", "problem", "100 MiB free.*cgroup", {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{GIB - (100 << 20)}\n"}),
        ("memory", "problem", "98 MiB free of 1.9 GiB of the machine", {
            "proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 100000 kB\n"}),
        ("memory", "note", "overcommit_memory is 2", {"proc/sys/vm/overcommit_memory": "2\n"}),
        ("memory", "note", "cannot be read", {"proc/meminfo": None}),
        ("core files", "note", "'core', up to all memory", limits("Max core file size", "unlimited")),
        ("core files", "ok", "/usr/bin/keep", {"proc/sys/kernel/core_pattern": "|/usr/bin/keep %p\n"}),
        ("kernel", "problem", "4.19.0.*5.3 or later", {"proc/sys/kernel/osrelease": "4.19.0-6-amd64\n"}),
        ("kernel", "note", "cannot be read", {"proc/sys/kernel/osrelease": None}),
        ("seccomp", "ok", "a filter", {"proc/self/status": "Seccomp:\t2\n"}),
        ("seccomp", "problem", "strict", {"proc/self/status": "Seccomp:\t1\n"}),
        ("ptrace", "note", "ptrace_scope is 2: no copies by process_vm_readv.*sysctl", {
            "proc/sys/kernel/yama/ptrace_scope": "2\n"}),
        ("ptrace", "note", "ptrace_scope is 3.*a restart", {"proc/sys/kernel/yama/ptrace_scope": "3\n"}),
        ("ptrace", "ok", "not restricted", {"proc/sys/kernel/yama/ptrace_scope": None}),
        ("huge pages", "note", "slower.*madvise", {
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}),
        ("huge pages", "note", "none", {"sys/kernel/mm/transparent_hugepage/enabled": None}),
        ("clock", "note", "hpet", {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"}),
        ("FUSE", "note", "no /dev/fuse.*--device /dev/fuse", {"dev/fuse": None}),
        ("NICs", "ok", "mlx5_0, by UCX", NIC),
        ("NICs", "note", "no port is active", {**NIC, "sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"}),
        ("locked memory", "note", "8.0 MiB.*memlock", NIC),
        ("locked memory", "ok", "no limit", {**NIC, **limits("Max locked memory", "unlimited")}),
        ("GPUs", "ok", "2 of CUDA, and libcuda.so.1", GPU),
        ("GPUs", "problem", "2 of CUDA, but no libcuda.so.1.*--gpus all", {"dev/nvidia0": "", "dev/nvidia1": ""}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_machine(machine, name, level, words, files):
    write(machine.root, files)
    expect(of(machine, name), level, words)


def expect(check, level, words):
    assert check.level == level, check
    assert re.search(words, f"{check.text} {check.advice}"), check
    assert check.advice or level != "problem"


def no_devices(path, rights):
    return "/dev/" not in path


@pytest.mark.parametrize(
    "name, level, words, changes",
    [
        ("processes", "note", "at most 700 .*ulimit -u.*LimitNPROC", {"user": 1000}),
        ("/dev/shm", "note", "64 MiB free.*--shm-size", {"space": lambda path: (GIB, 64 << 20)}),
        ("/dev/shm", "note", "not there", {"space": lambda path: None}),
        ("TMPDIR", "problem", "/tmp is full", {"space": lambda path: (GIB, 0)}),
        ("system calls", "problem", "pidfd_open not there: ends.*Linux 5.3", {
            "call": lambda name: errno.ENOSYS if name == "pidfd_open" else 0}),
        ("system calls", "problem", "memfd_create forbidden.*seccomp", {
            "call": lambda name: errno.EPERM if name == "memfd_create" else 0}),
        ("system calls", "note", "futex_waitv not there.*5.16", {
            "call": lambda name: errno.ENOSYS if name == "futex_waitv" else 0}),
        ("system calls", "note", "process_vm_readv forbidden: buffers.*once or twice more", {
            "call": lambda name: errno.EPERM if name == "process_vm_readv" else 0}),
        ("clock", "problem", "days before the day of this installation.*timedatectl", {"now": 86400.0}),
        ("monarch-hostd", "problem", "does not run: .*libssl.so.3: cannot open", {
            "run": lambda command: (127, "monarch-hostd: error while loading libssl.so.3: cannot open")}),
        ("monarch-hostd", "problem", "it ends with status 132", {"run": lambda command: (132, "")}),
        ("FUSE", "note", "not for this user", {"access": no_devices}),
        ("NICs", "note", "no /dev/infiniband/uverbs", {"access": no_devices}),
        ("GPUs", "problem", "must not use /dev/nvidia0", {"access": no_devices}),
        ("TMPDIR", "problem", "/tmp is no folder that this user can write to", {"access": lambda path, rights: False}),
        ("TMPDIR", "problem", "/no/such", {"environment": {"TMPDIR": "/no/such"}}),
        ("runtime folder", "problem", "cannot be made.*XDG_RUNTIME_DIR", {"access": lambda path, rights: False}),
    ],
)  # fmt: skip
def test_what_is_wrong_beside_files(machine, name, level, words, changes):
    write(machine.root, {**NIC, **GPU, **limits("Max processes", 700)})
    expect(of(dataclasses.replace(machine, **changes), name), level, words)


@pytest.mark.parametrize("file", ["proc/sys/user/max_user_namespaces", "proc/sys/kernel/unprivileged_userns_clone"])
def test_user_namespaces_are_for_root_only(machine, file):
    write(machine.root, {file: "0\n"})
    assert of(dataclasses.replace(machine, user=0), "user namespaces").level == "ok"
    expect(of(dataclasses.replace(machine, user=1000), "user namespaces"), "note", "none for this user.*sysctl")


def test_a_long_folder_is_said_to_be_too_long_for_sockets(machine):
    long = "/" + "x" * 90
    os.mkdir(machine.path(long))
    there = dataclasses.replace(machine, environment={"TMPDIR": long, "XDG_RUNTIME_DIR": long})
    expect(of(there, "TMPDIR"), "note", r"too long for sockets \(118 of 107 bytes\).*shorter")
    expect(of(there, "runtime folder"), "problem", "too long for sockets.*XDG_RUNTIME_DIR")


def test_the_runtime_folder_is_for_this_user_alone(machine):
    base = Path(machine.path("/run"))
    base.mkdir()
    there = dataclasses.replace(machine, environment={"XDG_RUNTIME_DIR": "/run"})
    expect(of(there, "runtime folder"), "ok", "/run/monarch, made when it is needed")
    (base / "monarch").write_text("")
    expect(of(there, "runtime folder"), "problem", "is not a folder")
    (base / "monarch").unlink()
    (base / "monarch").mkdir(mode=0o700)
    expect(of(there, "runtime folder"), "ok", "for this user alone")
    (base / "monarch").chmod(0o755)
    expect(of(there, "runtime folder"), "problem", r"open to other users \(mode 0755\)")
    other = dataclasses.replace(there, user=os.geteuid() + 1)  # whose XDG_RUNTIME_DIR is not its own
    expect(of(other, "runtime folder"), "ok", f"/tmp/monarch-{os.geteuid() + 1}, made when it is needed")
    Path(machine.path(f"/tmp/monarch-{os.geteuid() + 1}")).mkdir()
    expect(of(other, "runtime folder"), "problem", "do not trust")


def test_a_library_is_found_by_the_environment(machine):
    write(machine.root, {**NIC, "opt/ucx/libucp.so.0": ""})
    write(machine.root, {"usr/lib/libucp.so.0": None})
    expect(of(machine, "NICs"), "note", "no libucp.so.0.*install UCX")
    there = dataclasses.replace(machine, environment={"LD_LIBRARY_PATH": "/opt/other:/opt/ucx"})
    assert of(there, "NICs").level == "ok"


def test_no_limit_is_none(machine):
    write(machine.root, limits("Max open files", "unlimited"))
    assert machine.limit("Max open files") == (UNLIMITED, UNLIMITED)
    expect(of(machine, "descriptors"), "ok", "unlimited open files: no limit for processes")


# ---- The command ----


@pytest.mark.parametrize("level, status", [("ok", 0), ("note", 0), ("problem", 1)])
def test_the_status_says_whether_there_is_a_problem(monkeypatch, capsys, machine, level, status):
    write(machine.root, limits("Max open files", {"ok": 524288, "note": 1024, "problem": 64}[level]))
    monkeypatch.setattr("monarch.tools._doctor.Machine", lambda: machine)
    assert main(["doctor"]) == status
    lines = capsys.readouterr().out.splitlines()
    shown = {"ok": "OK", "note": "note", "problem": "problem"}[level]
    (line,) = [line for line in lines if " descriptors " in line]
    assert len(lines) == 22 and line.startswith(f"{shown} ") and ("LimitNOFILE" in line) == (level != "ok")
    assert main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert [each["level"] for each in found if each["name"] == "descriptors"] == [level]
    assert {tuple(each) for each in found} == {("name", "level", "text", "advice")}


def test_it_is_quick_starts_no_runtime_and_leaves_nothing(tmp_path):
    program = """
import os, sys
from monarch.tools.cli import main
assert main(["doctor"]) in (0, 1)
assert os.listdir("/proc/self/task") == [str(os.getpid())], "it has started threads"
assert "monarch._runtime.runtime" not in sys.modules
"""
    env = {**os.environ, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=LIMIT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 22
    assert os.listdir(tmp_path) == []
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5  # of processors, all in all


def test_nothing_is_missing_on_the_machine_that_runs_these_tests():
    """The trial calls do work where all else of Monarch does."""
    assert of(Machine(), "system calls").level in ("ok", "note")
    assert of(Machine(), "monarch-hostd").level == of(Machine(), "extension").level == "ok"
