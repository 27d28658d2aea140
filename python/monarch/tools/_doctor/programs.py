"""Checks of Python, of what Monarch runs, and of the folders that it writes to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import stat
import sys

from monarch.tools._doctor.machine import Check, Machine, note, ok, problem

_PATH_MAX = 107  # bytes of a socket's
_IN_JOB_FOLDER = len("/monarch-job-12345678/99999")
_IN_RUNTIME_FOLDER = len("/launch-12345678/12345678")
_OLDEST_PYTHON = (3, 10)
_OLDEST_CLOUDPICKLE = (3, 0)


def python(machine: Machine) -> Check:
    text = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return problem("Python", text, f"Python {_OLDEST_PYTHON[0]}.{_OLDEST_PYTHON[1]} or later")
    return ok("Python", text)


def cloudpickle(machine: Machine) -> Check:
    try:
        version = importlib.metadata.version("cloudpickle")
    except importlib.metadata.PackageNotFoundError:
        return problem("cloudpickle", "not installed", "pip install 'cloudpickle>=3.0'")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_CLOUDPICKLE:
        return problem("cloudpickle", version, "pip install 'cloudpickle>=3.0'")
    return ok("cloudpickle", version)


def extension(machine: Machine) -> Check:
    try:
        from monarch import _core
    except ImportError as error:
        return problem("extension", f"monarch._core cannot be loaded: {error}",
                       "install Monarch for this Python and this system (make build, in a checkout)")  # fmt: skip
    return ok("extension", str(_core.__file__))


def host_daemon(machine: Machine) -> Check:
    import monarch

    folder = os.path.join(os.path.dirname(monarch.__file__), "bin")
    for name in ("monarch-hostd", "monarch-guard"):
        program = os.path.join(folder, name)
        if not os.access(program, os.X_OK):
            return problem(name, f"no program {program}", "install Monarch again (make build, in a checkout)")
    status, text = machine.run([os.path.join(folder, "monarch-hostd"), "--help"])
    if not text.startswith("usage: monarch-hostd"):
        first = (text.strip() or f"it ends with status {status}").split("\n")[0]
        return problem("monarch-hostd", f"does not run: {first}", "install Monarch for this system, with OpenSSL 3")
    return ok("monarch-hostd", "runs")


def sockets(machine: Machine) -> Check:
    """Of jobs, which are in the temporary folder."""
    folder = next((found for name in ("TMPDIR", "TEMP", "TMP") if (found := machine.environment.get(name))), "/tmp")
    where = machine.path(folder)
    if not os.path.isdir(where) or not machine.may_use(folder, os.W_OK | os.X_OK):
        return problem("TMPDIR", f"{folder} is no folder that this user can write to", "set TMPDIR to one that is")
    length = len(os.fsencode(folder)) + _IN_JOB_FOLDER
    if length > _PATH_MAX:
        return note("TMPDIR", f"{folder} is too long for sockets ({length} of {_PATH_MAX} bytes): jobs go to /tmp",
                    "set TMPDIR to a shorter one")  # fmt: skip
    free = machine.space(where)
    if free is not None and free[1] < 1 << 20:
        return problem("TMPDIR", f"{folder} is full", "make room there, or set TMPDIR to another one")
    return ok("TMPDIR", f"{folder}: sockets of jobs have {length} of {_PATH_MAX} bytes")


def runtime_folder(machine: Machine) -> Check:
    """Where the tokens are by which processes trust each other."""
    name = "runtime folder"
    base = machine.environment.get("XDG_RUNTIME_DIR", "")
    theirs = _look_at(machine, base) if base.startswith("/") else None
    is_ours = theirs is not None and stat.S_ISDIR(theirs.st_mode) and theirs.st_uid == machine.user
    folder = f"{base}/monarch" if is_ours else f"/tmp/monarch-{machine.user}"
    if len(os.fsencode(folder)) + _IN_RUNTIME_FOLDER > _PATH_MAX:
        return problem(name, f"{folder} is too long for sockets", "set XDG_RUNTIME_DIR to a shorter one")
    found = _look_at(machine, folder)
    if found is None:
        parent = os.path.dirname(folder)
        if not machine.may_use(parent, os.W_OK | os.X_OK):
            return problem(name, f"{folder} cannot be made", f"let this user write to {parent}, or set XDG_RUNTIME_DIR")
        return ok(name, f"{folder}, made when it is needed")
    if not stat.S_ISDIR(found.st_mode):
        return problem(name, f"{folder} is not a folder", f"rm {folder}")
    if found.st_uid != machine.user:
        return problem(name, f"{folder} belongs to user {found.st_uid}, not to this one: do not trust what made it",
                       "have it removed, or set XDG_RUNTIME_DIR to a folder of your own")  # fmt: skip
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return problem(name, f"{folder} is open to other users (mode {mode:04o})", f"rm -r {folder}")
    return ok(name, f"{folder}, for this user alone")


def _look_at(machine: Machine, path: str) -> os.stat_result | None:
    try:
        return os.lstat(machine.path(path))
    except OSError:
        return None
