"""What checks read: this machine, or the files of another one under a folder."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

UNLIMITED = 1 << 62  # what a limit is that is none
_V1_UNLIMITED = 1 << 60  # from here on a limit of the old cgroups is none
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/{}-linux-gnu")
_PROGRAM_LIMIT_S = 5


class Check(NamedTuple):
    """What was found. ``advice``: what to do; only a problem must have it."""

    name: str
    level: str  # "ok", "note": something is slower, or missing, "problem": something does not work
    text: str
    advice: str = ""


def ok(name: str, text: str) -> Check:
    return Check(name, "ok", text)


def note(name: str, text: str, advice: str = "") -> Check:
    return Check(name, "note", text, advice)


def problem(name: str, text: str, advice: str) -> Check:
    return Check(name, "problem", text, advice)


class Usage(NamedTuple):
    """Of a cgroup: the least of its limits and of those above it, with what is used under that one."""

    limit: int
    used: int


def space(path: str) -> tuple[int, int] | None:
    """Bytes of a file system, and those that are free. None: there is none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def run(command: list[str]) -> tuple[int, str]:
    """The status and the output of a program that ends at once; 127 and why it cannot be started."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=_PROGRAM_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"it has not ended after {_PROGRAM_LIMIT_S} s"
    except OSError as error:
        return 127, error.strerror or str(error)
    return done.returncode, done.stdout


def try_call(name: str) -> int:
    """Makes a system call that changes nothing. 0: it is there and allowed; else what it fails with (``errno``)."""
    try:
        if name == "pidfd_open":
            os.close(os.pidfd_open(os.getpid()))
        elif name == "memfd_create":
            os.close(os.memfd_create("monarch-doctor"))
        else:
            return _try_by_libc(name)
    except AttributeError:
        return errno.ENOSYS
    except OSError as error:
        return error.errno or errno.EIO
    return 0


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _try_by_libc(name: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if name == "futex_waitv":
        libc.syscall(449, None, 0, 0, None, 0)  # waits for nothing: EINVAL, where there is such a call
        return 0 if ctypes.get_errno() == errno.EINVAL else ctypes.get_errno()
    if name == "get_robust_list":
        number = {"x86_64": 274, "aarch64": 100}.get(platform.machine())
        head, size = ctypes.c_void_p(), ctypes.c_size_t()
        made = 0 if number is None else libc.syscall(number, 0, ctypes.byref(head), ctypes.byref(size))
    else:
        source, target = ctypes.create_string_buffer(b"x", 1), ctypes.create_string_buffer(1)
        there, here = _Vector(ctypes.addressof(source), 1), _Vector(ctypes.addressof(target), 1)
        made = libc.process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return 0 if made >= 0 else ctypes.get_errno()


@dataclass(frozen=True)
class Machine:
    """Where checks look. ``root`` is put in front of every path; the rest stands for what is no file.

    Args:
        root: "/", or a folder with files of another machine.
        environment: of this process.
        user: the effective user's id.
        call: :func:`try_call`.
        space: :func:`space`.
        run: :func:`run`.
        now: seconds since 1970.
        access: :func:`os.access`.
    """

    root: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    user: int = field(default_factory=os.geteuid)
    call: Callable[[str], int] = try_call
    space: Callable[[str], tuple[int, int] | None] = space
    run: Callable[[list[str]], tuple[int, str]] = run
    now: float = field(default_factory=time.time)
    access: Callable[[str, int], bool] = os.access

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str | None:
        """None: it is not there, or must not be read."""
        try:
            with open(self.path(path), errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """What the file says; ``UNLIMITED`` for "max"; None: nothing."""
        text = self.read(path)
        if text is None or not (text == "max" or text.lstrip("-").isdigit()):
            return None
        return UNLIMITED if text == "max" else int(text)

    def may_use(self, path: str, rights: int = os.R_OK | os.W_OK) -> bool:
        return self.access(self.path(path), rights)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def limit(self, name: str) -> tuple[int, int]:
        """The soft and the hard limit of this process, as ``/proc/self/limits`` names it."""
        for line in (self.read("/proc/self/limits") or "").split("\n"):
            if line.startswith(name + " "):
                soft, hard = line[len(name) :].split()[:2]
                return _limit(soft), _limit(hard)
        return UNLIMITED, UNLIMITED

    def field(self, path: str, name: str) -> str | None:
        """The value of a line ``name: value``."""
        for line in (self.read(path) or "").split("\n"):
            key, colon, value = line.partition(":")
            if colon and key == name:
                return value.strip()
        return None

    def cgroup(self, controller: str, limit: str, used: str, old: tuple[str, str]) -> Usage | None:
        """The tightest limit; None: there is none.

        Args:
            controller: its name in old cgroups.
            limit: file of the limit, ``memory.max``.
            used: file of what is used.
            old: the same two in old cgroups.
        """
        found: list[Usage] = []
        for line in (self.read("/proc/self/cgroup") or "").split("\n"):
            _, names, path = [*line.split(":", 2), "", "", ""][:3]
            if names == "":
                found += self._usages("/sys/fs/cgroup", path, limit, used)
            elif controller in names.split(","):
                found += self._usages(f"/sys/fs/cgroup/{controller}", path, *old)
        return min(found, key=lambda usage: usage.limit - usage.used, default=None)

    def _usages(self, top: str, path: str, limit: str, used: str) -> Iterator[Usage]:
        """From the cgroup up. Where containers do not see their own, it is at the top."""
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts), -1, -1):
            folder = "/".join([top, *parts[:count]])
            most = self.number(f"{folder}/{limit}")
            if most is not None and most < _V1_UNLIMITED:
                yield Usage(most, max(0, (self.number(f"{folder}/{used}") or 0) - self._can_go(folder, limit)))

    def _can_go(self, folder: str, limit: str) -> int:
        """Of what a cgroup uses, what the kernel takes from it before anybody is killed: pages of files."""
        stat = (self.read(f"{folder}/memory.stat") or "") if limit.startswith("memory.") else ""
        found = dict(line.rpartition(" ")[::2] for line in stat.split("\n"))
        return int(found.get("total_inactive_file", found.get("inactive_file", 0)))

    def has_library(self, name: str) -> bool:
        """Whether the loader would find it, by its cache and the usual folders."""
        folders = [each for each in self.environment.get("LD_LIBRARY_PATH", "").split(":") if each]
        folders += [each.format(platform.machine()) for each in _LIBRARIES]
        if any(os.path.exists(self.path(f"{folder}/{name}")) for folder in folders):
            return True
        return f"{name}\0" in (self.read("/etc/ld.so.cache") or "")


def _limit(text: str) -> int:
    return UNLIMITED if text == "unlimited" else int(text)


def size(count: int) -> str:
    """Bytes, for people: ``1.5 GiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"
