"""Jobs on machines that somebody names, and that one logs in to."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from monarch import _core
from monarch._config import settings
from monarch.job._attached import Attached, check_mesh_name
from monarch.job._log import logger
from monarch.job._logins import Login, LoginError, close_all, told
from monarch.job._remote import RemoteJob
from monarch.job._trait import JobTrait

__all__ = ["LoginJob"]

_CHECK_LIMIT_S = 5.0  # for a host to say whether its worker lives
_KEEP_LIMIT_S = 10.0  # for a host to let its worker outlive this script
_END_LIMIT_S = 30.0  # for a host to end what runs there


class _Worker(NamedTuple):
    """One host, as it is saved."""

    mesh: str
    host: str  # as the user has named it
    url: str
    job: str  # MONARCH_JOB_ID there
    pid: int
    started: int
    machine: str  # which, until its next start

    def asked(self, what: str) -> list[str]:
        return [what, self.job, str(self.pid), str(self.started), self.machine]


class _Here(Attached):
    """What belongs to this process."""

    def __init__(self) -> None:
        super().__init__()
        self.logins: list[Login] = []  # with which workers end; none when the job is saved


class LoginJob(RemoteJob):
    """Hosts that are named one by one: each is logged in to, and a worker is started there, of the user who logs in.

    Saved, the job outlives the script, and the next one that wants the same goes on with it; not saved, it ends with
    the script, or with the connections. :meth:`kill` ends all that its workers have started, on each host: SIGTERM, and
    SIGKILL one second later. It raises ``RuntimeError`` if a host cannot be reached; it may be called again then.

    A subclass says how one logs in, :meth:`_login`, and under which names hosts are reached, :meth:`_dialled`.
    """

    def __init__(self, python_exe: str = "python", monarch_port: int = 22222, transport: str = "tcp") -> None:
        """
        Args:
            python_exe: the interpreter there, which has monarch; perhaps with ``env NAME=VALUE`` before it.
            monarch_port: that workers listen on; 0: any that is free.
            transport: ``"tcp"``, with TLS. There is no other.
        """
        if not isinstance(python_exe, str) or not python_exe.strip():
            raise TypeError(f"python_exe must be a command such as 'python3', but is {python_exe!r}")
        if isinstance(monarch_port, bool) or not isinstance(monarch_port, int):
            raise TypeError(f"monarch_port must be an int, but is {monarch_port!r}")
        if not 0 <= monarch_port < 65536:
            raise ValueError(f"monarch_port must be from 0 (any that is free) to 65535, but is {monarch_port}")
        if transport != "tcp":
            raise ValueError(f"transport must be 'tcp', which is with TLS, but is {transport!r}")
        self._python = shlex.split(python_exe)
        self._port = monarch_port
        self._meshes: dict[str, list[str]] = {}
        self._allocated: Any = None  # what these workers were wanted for
        self._workers: list[_Worker] = []

    def __repr__(self) -> str:
        meshes = ", ".join(f"{name!r}: {len(hosts)}" for name, hosts in self._meshes.items())
        return f"{type(self).__name__}({{{meshes}}})"

    def add_mesh(self, name: str, hosts: list[str] | os.PathLike[str]) -> None:
        """A mesh of these hosts, in this order, with the dimension ``hosts``.

        Args:
            name: under which :meth:`state` has it.
            hosts: as one names them to log in. One that is there several times takes ``monarch_port=0``. Or a file,
                ``pathlib.Path("hosts")``, which is read now: a host a line, perhaps with ``slots=8`` behind it, which
                counts for nothing here, and with comments (``#``).
        """
        check_mesh_name(name)
        if isinstance(hosts, os.PathLike):
            hosts = _hosts_in(hosts)
        if name in self._meshes:
            raise ValueError(f"there is a mesh {name!r} already")
        if isinstance(hosts, str) or not isinstance(hosts, Sequence) or not hosts:
            raise TypeError(f"hosts must be a list such as ['node1', 'node2'], but is {hosts!r}")
        for host in hosts:
            if not isinstance(host, str):
                raise TypeError(f"a host must be a str such as 'node1', but is {host!r}")
            if not host or host.startswith("-") or not host.isprintable() or " " in host:
                raise ValueError(f"{host!r} is no name of a host")
        self._meshes[name] = list(hosts)

    # ---- For subclasses ----

    def _login(self, host: str) -> list[str]:
        """A command whose next argument is a line for a shell on ``host``, with stdin and stdout here."""
        raise NotImplementedError

    def _allocate(self) -> None:  # most have them
        """Waits until the machines are there that :meth:`add_mesh` has named."""

    def _dialled(self, hosts: list[str], until: float) -> dict[str, str]:
        """For each host the name, or the address, that scripts reach it at. By then (``time.monotonic()``)."""
        return {host: host.rpartition("@")[2] for host in hosts}

    def _config(self) -> Any:
        """What must be the same for a script to go on with the hosts of another; compared, and saved."""
        return (
            type(self).__name__,
            self._python,
            self._port,
            {name: list(hosts) for name, hosts in self._meshes.items()},
        )

    # ---- As JobTrait says ----

    def can_run(self, spec: JobTrait) -> bool:
        """Whether it was allocated for the same, and all its workers live. Asks each host, for 5 s at most."""
        if not isinstance(spec, LoginJob) or not self._workers or self._allocated != spec._config():
            return False
        if self._here is not None and self._here.has_shut_down():
            return False  # its workers end, or have
        answers, failures = self._ask(self._workers, "check", _CHECK_LIMIT_S)
        if failures:
            logger.warning("%r: its hosts cannot be asked:\n%s", self, told(failures))
        return len(answers) == len(self._workers) and all(answer["alive"] for _, answer in answers)

    def _specification(self) -> Any:
        return self._config()

    def _has_ended(self) -> bool:
        return self._here is not None and bool(self._here.has_shut_down())

    def _is_running(self) -> bool:
        return True  # it was just asked

    def _create(self, client_script: str | None) -> None:
        name = type(self).__name__
        if client_script is not None:
            raise RuntimeError(f"{name} cannot run batch-mode scripts")
        if _core.in_simulation():
            raise NotImplementedError(f"{name}: not in monarch.testing.simulate(), which has no real processes")
        if not self._meshes:
            raise RuntimeError(f"{name} has no hosts: say add_mesh('hosts', ['node1', 'node2']) first")
        self._begin()
        try:
            self._allocate()
            self._workers = self._start()
            self._allocated = self._config()
        except BaseException:
            self._release_logins()
            self._forget()
            raise
        _unsaved[self._token_file()] = _Unsaved(os.getpid(), self._attached().logins)

    def _start(self) -> list[_Worker]:
        """All at the same time. What has been started stands in ``_here``."""
        limit = settings.seconds("host_spawn_ready_timeout")
        until = time.monotonic() + limit
        wanted = [(mesh, host) for mesh, hosts in self._meshes.items() for host in hosts]
        names = self._dialled(sorted({host for _, host in wanted}), until)
        logins = self._attached().logins
        for number, (_, host) in enumerate(wanted):
            dial = f"[{names[host]}]" if ":" in names[host] else names[host]
            command = self._there(host, ["start", f"{self._apply_id}.{number}", dial, str(self._port)])
            logins.append(Login(host, command, f"{self._token}\n".encode()))
        answers, failures = _answers(logins, until)
        if failures:
            raise RuntimeError(
                f"{self!r} cannot be started, and what it has started is ended (limit: host_spawn_ready_timeout, "
                f"{limit:g} s):\n{told(failures)}"
            )
        found = []
        for number, ((mesh, host), (_, there)) in enumerate(zip(wanted, answers)):
            process = there["pid"], there["started"], there["machine"]
            found.append(_Worker(mesh, host, there["address"], f"{self._apply_id}.{number}", *process))
        return found

    def _addresses(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for worker in self._workers:
            found.setdefault(worker.mesh, []).append(worker.url)
        return found

    def _attached(self) -> _Here:
        if self._here is None:
            self._here = _Here()
        here: _Here = self._here
        return here

    def _note_saved(self) -> None:
        _unsaved.pop(self._token_file(), None)
        logins = self._here.logins if self._here is not None else []
        for login in logins:
            login.tell(b".")
        _, failures = _answers(logins, time.monotonic() + _KEEP_LIMIT_S)
        if failures:
            logger.warning("%r: hosts that may not outlive this script:\n%s", self, told(failures))
        self._close(logins)

    def _kill(self) -> None:
        self._let_go()
        ended = self._release_logins()
        answers, failures = self._ask([each for each in self._workers if each.job not in ended], "end", _END_LIMIT_S)
        left = {host: answer["left"] for host, answer in answers if answer["left"]}
        failures |= {host: f"the processes {pids} were sent SIGKILL and have not ended" for host, pids in left.items()}
        if failures:
            raise RuntimeError(f"{self!r} cannot be killed:\n{told(failures)}")
        _unsaved.pop(self._token_file(), None)
        self._workers, self._allocated = [], None
        self._forget()

    # ---- Hosts ----

    def _there(self, host: str, arguments: list[str]) -> list[str]:
        return [*self._login(host), shlex.join([*self._python, "-m", "monarch.job._login_there", *arguments])]

    def _ask(
        self, workers: list[_Worker], what: str, limit: float
    ) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, str]]:
        """Their answers, each behind its host, and what is wrong with the others."""
        logins: list[Login] = []
        try:
            for worker in workers:
                logins.append(Login(worker.host, self._there(worker.host, worker.asked(what))))
            return _answers(logins, time.monotonic() + limit)
        finally:
            close_all(logins)

    def _release_logins(self) -> set[str]:
        """Ends what would end with this process. Returns the ``job`` of hosts that have said that nothing is left."""
        if self._here is None:
            return set()
        logins: list[Login] = self._here.logins
        for login in logins:
            login.let_go()
        until = time.monotonic() + _END_LIMIT_S
        ended = set()
        for number, login in enumerate(logins):
            with contextlib.suppress(LoginError):
                # Who has not said yet that there is a worker ends it, if there is, when the connection is cut.
                while login.has_answered and "left" not in (answer := login.answer(until)):
                    pass
                if login.has_answered and not answer["left"]:
                    ended.add(f"{self._apply_id}.{number}")
        self._close(logins)
        return ended

    def _close(self, logins: list[Login]) -> None:
        close_all(logins)
        logins.clear()


def _hosts_in(path: os.PathLike[str]) -> list[str]:
    hosts = []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            host, *rest = line.partition("#")[0].split() or [""]
            if any("=" not in word for word in rest):
                raise ValueError(f"{os.fspath(path)}, line {number}: a host a line is wanted, not {line.strip()!r}")
            hosts += [host] if host else []
    if not hosts:
        raise ValueError(f"there is no host in {os.fspath(path)}")
    return hosts


def _answers(logins: Iterable[Login], until: float) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, str]]:
    found, failures = [], {}
    for login in logins:
        try:
            found.append((login.host, login.answer(until)))
        except LoginError as error:
            failures[login.host] = str(error)
    return found, failures


# ---- What is not saved ----


class _Unsaved(NamedTuple):
    pid: int  # whose
    logins: list[Login]  # open for as long as that process, also where nobody has the job any more


_unsaved: dict[str, _Unsaved] = {}  # by the jobs' token files


@atexit.register
def _end_unsaved() -> None:
    """Hosts end by themselves, with their connections, which this process ends with."""
    for path, job in _unsaved.items():
        if job.pid == os.getpid():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
