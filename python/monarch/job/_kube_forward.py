"""The port of this machine that leads to a pod: ``kubectl port-forward``, one for all scripts of an allocation."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any

from monarch.job import _ending, _saved
from monarch.job._descriptors import readable
from monarch.job._detached import Detached

_FIRST_LINE_S, _LOOK_S, _END_S = 30.0, 0.05, 5.0
_LINE = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class Forward:
    """What is known of it stands in a file, which all scripts of the allocation look at."""

    def __init__(self, record: str) -> None:
        """``record``: a path, in a folder for this user alone."""
        self._record, self._log = record, f"{record}.log"

    def ensure(self, kubectl: list[str], pod: str, port: int) -> int:
        """The local port, with what leads on from there, which is started if it does not run. ``RuntimeError``.

        Args:
            kubectl: options that say which cluster and namespace.
            pod: its name.
            port: of the pod.
        """
        with _saved.locked(self._record):
            found = self._read()
            if found is not None and _ending.is_alive(_ending.Process(found["pid"], found["started"])):
                return int(found["port"])
            words = [*kubectl, "port-forward", "--address", "127.0.0.1", f"pod/{pod}"]
            if found is not None:  # a script has one way into its cluster: the port stays
                try:
                    return self._start([*words, f"{found['port']}:{port}"])
                except RuntimeError as error:
                    if "address already in use" not in str(error).lower():
                        raise
            return self._start([*words, f":{port}"])

    def end(self) -> None:
        """Nothing if there is none."""
        if not os.path.exists(self._record):
            return
        with _saved.locked(self._record):
            if (found := self._read()) is not None:
                _end(_ending.Process(found["pid"], found["started"]))
            for path in (self._record, self._log):
                _saved.remove(path)

    def _read(self) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError, ValueError), open(self._record) as file:
            found: dict[str, Any] = json.load(file)
            return found
        return None

    def _start(self, arguments: list[str]) -> int:
        program = shutil.which("kubectl")
        if program is None:
            raise RuntimeError(
                "kubectl is not on PATH, which leads a script from outside of a cluster to its pods: install it "
                "(https://kubernetes.io/docs/tasks/tools), or name a worker that this machine reaches, "
                "KubernetesJob(..., attach_to='tcp://HOST:PORT')"
            )
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(self._log, flags, 0o600)) as log:
            child = Detached(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
            process = _ending.identify(child.pid) or _ending.Process(child.pid, 0)
            try:
                port = self._port(child.pid)
            except BaseException:
                _end(process)
                child.wait()
                _saved.remove(self._log)
                raise
        record = {"pid": process.pid, "started": process.started, "port": port}
        _saved.write(self._record, json.dumps(record).encode())
        return port

    def _port(self, pid: int) -> int:
        """As it says it in a line."""
        until = time.monotonic() + _FIRST_LINE_S
        pidfd = os.pidfd_open(pid)
        try:
            while True:
                has_ended = bool(readable([pidfd], _LOOK_S))
                with open(self._log) as file:
                    said = file.read()
                if (found := _LINE.search(said)) is not None and not has_ended:
                    return int(found[1])
                if has_ended or time.monotonic() > until:
                    why = "has ended" if has_ended else f"has told no port within {_FIRST_LINE_S:.0f} s"
                    raise RuntimeError(f"kubectl port-forward {why}: {' '.join(said.split()) or 'it has said nothing'}")
        finally:
            os.close(pidfd)


def _end(process: _ending.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not _ending.is_alive(process):
                    return
                signal.pidfd_send_signal(pidfd, number)
                readable([pidfd], _END_S)
        finally:
            os.close(pidfd)
