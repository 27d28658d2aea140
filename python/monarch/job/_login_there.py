"""What a LoginJob runs on each of its hosts, by ``python -m``: it starts the host's worker, asks after it, or ends it.

    start JOB DIAL PORT                 stdin: the token, 32 hexadecimal digits in a line. Says who the worker is, and
                                        stays: the worker ends with this process, unless a byte comes over stdin first
    check JOB PID STARTED MACHINE       says whether that worker lives
    end JOB PID STARTED MACHINE         ends it, and all that it has started

Each says what it has to say as JSON behind ``ANSWER``, since shells may greet on stdout. ``JOB`` is of this host alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from monarch import _core
from monarch.job import _ending
from monarch.job._detached import Detached
from monarch.job._ending import JOB_ID, Process

ANSWER = "monarch-host: "
_GRACE_S, _KILL_LIMIT_S = 1.0, 10.0
_BEAT_S = 15.0  # what is said to a network that is gone makes the connection fail, as silence does not


def start(job: str, dial: str, port: str) -> None:
    """``dial``: the name under which scripts reach this machine; ``port``: 0 is any."""
    token = bytes.fromhex(os.fsdecode(_read_line()))
    lifeline, its_end = os.pipe()
    try:
        with _listen(int(port)) as listener:
            worker = _start_worker(job, f"tcp://{dial}:{listener.getsockname()[1]}", listener, token, lifeline)
    finally:
        os.close(lifeline)
    try:
        assert worker.stdout is not None
        with worker.stdout as told:
            address = told.readline().strip()
        process = _ending.identify(worker.pid)
        if not address or process is None:
            worker.wait()
            raise OSError(_read_log(job) or f"the worker has ended with status {worker.returncode}")
        say({"address": address, "pid": process.pid, "started": process.started, "machine": _core.machine_id()})
        if _is_kept():
            os.write(its_end, b".")
            say({"kept": True})
            return
    except BaseException:
        _end(job, None)
        raise
    say({"left": _end(job, process)})


def check(job: str, pid: str, started: str, machine: str) -> None:
    process = _process(pid, started, machine)
    say({"alive": process is not None and _ending.is_alive(process)})


def end(job: str, pid: str, started: str, machine: str) -> None:
    say({"left": _end(job, _process(pid, started, machine))})


def say(what: dict[str, Any]) -> None:
    """Nobody may be there to hear it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{ANSWER}{json.dumps(what)}\n".encode())


def _start_worker(job: str, dial: str, listener: socket.socket, token: bytes, lifeline: int) -> Detached:
    from monarch._meshes.workers import hostd_program

    given, to_give = os.pipe()
    os.write(to_give, token)
    os.close(to_give)
    bind = f"{dial}@tcp://*:fd{listener.fileno()}"
    command = [hostd_program(), bind, "--python", sys.executable]
    command += ["--token-fd", str(given), "--lifeline", str(lifeline)]
    log = _open_log(job)
    try:
        return Detached(
            command, env={**os.environ, JOB_ID: job}, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=log, pass_fds=(given, lifeline, listener.fileno()), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(log)
        os.close(given)


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise OSError(f"cannot listen on port {port}: {error.strerror}") from error
        raise OSError(
            f"port {port} is taken there, perhaps by a worker of another job: choose another monarch_port, or 0, "
            "which is any that is free"
        ) from error


def _is_kept() -> bool:
    """Whether a byte comes before stdin, or who listens to stdout, ends."""
    with contextlib.suppress(BrokenPipeError):
        while not select.select([0], [], [], _BEAT_S)[0]:
            os.write(1, b"\n")
        return os.read(0, 1) != b""
    return False


def _read_line() -> bytes:
    """What follows in stdin is left there."""
    line = bytearray()
    while (piece := os.read(0, 1)) not in (b"", b"\n"):
        line += piece
    return bytes(line)


def _process(pid: str, started: str, machine: str) -> Process | None:
    """None: it was of another machine, or of before a restart."""
    return Process(int(pid), int(started)) if machine == _core.machine_id() else None


def _end(job: str, process: Process | None) -> list[int]:
    left = _ending.end_all(f"{JOB_ID}={job}", [] if process is None else [process], _GRACE_S, _KILL_LIMIT_S)
    with contextlib.suppress(OSError):
        os.unlink(_log(job))
    with contextlib.suppress(OSError):  # others are in there
        os.rmdir(os.path.dirname(_log(job)))
    return left


def _log(job: str) -> str:
    return os.path.join(os.path.dirname(_core.host_token_file()), f"job-{job}.log")


def _open_log(job: str) -> int:
    os.makedirs(os.path.dirname(_log(job)), mode=0o700, exist_ok=True)
    return os.open(_log(job), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def _read_log(job: str) -> str:
    with open(_log(job), errors="replace") as file:
        return file.read().strip()


def main(arguments: list[str]) -> int:
    """Returns the exit status. A failure is said as ``{"error": why}``."""
    try:
        commands: dict[str, Callable[..., None]] = {"start": start, "check": check, "end": end}
        commands[arguments[0]](*arguments[1:])
    except (OSError, RuntimeError, ValueError) as error:
        say({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
