"""Mount points: how a file system comes to one, and that it goes with this process, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import sys

from monarch._mounts.kernel import Files, Kernel
from monarch._processes import launch

_READ_ONLY, _NO_SUID, _NO_DEVICES, _DETACH = 1, 2, 4, 2
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)  # what a mount says whose process has ended
_DEPTH = 8
_END_S = 5.0  # of what watches
_LAST_USE_S = 0.5
INSTALL = "install the package fuse3 there; a container needs --device /dev/fuse --cap-add SYS_ADMIN"

# Waits for the end of the process that serves a mount, and unmounts. Who ends the job's processes with SIGKILL finds
# them parent by parent, one generation in each round: so this one has descendants, of which one is in time.
_WATCH = """
import ctypes, os, signal, sys
where, source, made, depth = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = 0
for _ in range(depth):
    child = os.fork()
    if child:
        break
    os.setsid()
umount = ctypes.CDLL(None).umount2
path = os.fsencode(where)
if not child:
    os.write(1, b"1")
os.close(1)
os.read(0, 1)
def there():
    with open("/proc/self/mountinfo", "rb") as mounts:
        return any(line.split(b" - ", 1)[1].split()[1] == source.encode() for line in mounts)
if there() and umount(path, 2) and there() and os.fork() == 0:
    os.execvp("fusermount3", ["fusermount3", "-u", "-z", "-q", where])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
if made:
    try:
        os.rmdir(where)
    except OSError:
        pass
"""


class NoFuse(RuntimeError):
    """Nothing can be mounted on this host."""


class Point:
    """A directory where ``files`` are mounted. Unmounted by :meth:`close`, and at the end of this process.

    ``NoFuse`` where there is no FUSE, ``FileExistsError`` if something is there that is in use.
    """

    def __init__(self, path: str, files: Files) -> None:
        _check_fuse(path)
        self._made = _prepare(path)
        self.path = path = os.path.realpath(path)  # looked at now: later it would be asked for from here
        source = f"monarch-{secrets.token_hex(8)}"  # by which it is known from others
        try:
            self._watcher = _watch(path, source, self._made)  # before there is something to be watched
        except BaseException:
            if self._made:
                os.rmdir(path)
            raise
        try:
            self.kernel = Kernel(_mount(path, source), files)
            self.kernel.start()
        except BaseException:
            self._end_watch()  # which unmounts
            raise

    def close(self) -> None:
        _unmount(self.path)
        self._end_watch()
        self.kernel.wait(_LAST_USE_S)

    def _end_watch(self) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watcher.wait(_END_S)


def _prepare(path: str) -> bool:
    """Makes the directory if need be, and unmounts what a process has left there that is dead; whether it was made."""
    while is_dead(path):
        before = len(_mounts_at(os.path.realpath(path)))
        _unmount(path)
        if is_dead(path) and len(_mounts_at(os.path.realpath(path))) >= before:
            raise FileExistsError(f"what is mounted at {path!r} is dead, and this user cannot unmount it")
    if not os.path.lexists(path):
        os.makedirs(path)
        return True
    if not os.path.isdir(path):
        raise NotADirectoryError(f"the mount point {path!r} is not a directory")
    if (kind := _kind_at(os.path.realpath(path))) is not None and kind.startswith("fuse"):
        raise FileExistsError(
            f"something is mounted at {path!r} ({kind}), by this script or another one that runs: another mount "
            "point is wanted, or its end"
        )
    if os.listdir(path):
        raise FileExistsError(f"the mount point {path!r} is not empty; an empty directory is wanted, or none")
    return False


def is_dead(path: str) -> bool:
    """Whether something is mounted there whose process has ended."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in _DEAD
    return False


def _kind_at(path: str) -> str | None:
    """What kind of file system is mounted at just this path; None: none."""
    found = None
    for line in _mounts():
        words = line.split()
        if _unescaped(words[4]) == path:
            found = words[words.index("-") + 1]
    return found


def _mounts_at(path: str) -> list[str]:
    """At just this path, one above the other."""
    return [line for line in _mounts() if _unescaped(line.split()[4]) == path]


def _mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.readlines()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def _check_fuse(path: str) -> None:
    """What can be known before anything is made."""
    where = f"{path!r} cannot be mounted on {socket.gethostname()!r}"
    if os.environ.get("MONARCH_MOUNT") == "import":
        raise NoFuse(f"{where}, which has MONARCH_MOUNT=import")
    if not os.path.exists("/dev/fuse"):
        raise NoFuse(f"{where}, which has no /dev/fuse: {INSTALL}")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise NoFuse(f"{where} without fusermount3: {INSTALL}")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NoFuse(f"{where}, where /dev/fuse cannot be opened ({error.strerror}): {INSTALL}") from None


def _mount(path: str, source: str) -> int:
    """The descriptor that the kernel's requests come from."""
    if os.geteuid() == 0:
        return _mount_as_root(path, source)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ran = subprocess.run(
            ["fusermount3", "-o", f"ro,nosuid,nodev,fsname={source},subtype=monarch,default_permissions", "--", path],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}, pass_fds=(theirs.fileno(),), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if ran.returncode:
            kind = RuntimeError if "mountpoint" in ran.stderr else NoFuse
            raise kind(f"{path!r} cannot be mounted on {socket.gethostname()!r}: {ran.stderr.strip()}")
        return socket.recv_fds(ours, 1, 1)[1][0]


def _mount_as_root(path: str, source: str) -> int:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode={stat.S_IFDIR:o},user_id={os.getuid()},group_id={os.getgid()}"
    options += ",allow_other,default_permissions"
    libc, flags = ctypes.CDLL(None, use_errno=True), _READ_ONLY | _NO_SUID | _NO_DEVICES
    if libc.mount(source.encode(), os.fsencode(path), b"fuse.monarch", flags, options.encode()):
        why = os.strerror(ctypes.get_errno())
        os.close(fd)
        raise NoFuse(f"{path!r} cannot be mounted on {socket.gethostname()!r}: {why}; {INSTALL}")
    return fd


def _unmount(path: str) -> None:
    if os.geteuid() == 0:
        ctypes.CDLL(None).umount2(os.fsencode(path), _DETACH)
    else:
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["fusermount3", "-u", "-z", "-q", path], stderr=subprocess.DEVNULL)


def _watch(path: str, source: str, made: bool) -> subprocess.Popen[bytes]:
    """Returns when what will unmount is there."""
    python = launch.default_python or sys.executable
    arguments = [path, source, "1" if made else "0", str(_DEPTH)]
    watcher = subprocess.Popen(
        [python, "-I", "-S", "-c", _WATCH, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True, cwd="/",
    )  # fmt: skip
    assert watcher.stdout is not None
    with watcher.stdout as told:
        told.read(1)
    return watcher
