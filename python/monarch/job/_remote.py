"""Jobs whose hosts are worker loops on machines that somebody else allocates: what they have in common."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex

from monarch import _core
from monarch.job import _saved
from monarch.job._attached import Attached
from monarch.job._trait import JobState, JobTrait

_GRACE_S = 1.0  # for what a script has spawned to stop


class RemoteJob(JobTrait):
    """A job whose hosts are reached over TCP, with TLS, by a token of the job.

    A subclass calls ``_begin()`` in ``_create``, which makes the token, has ``monarch worker`` run on its machines,
    gives it the token without showing it to others (``worker_command``), and says where its workers are:
    ``_addresses()``. In ``_kill`` it calls ``_let_go()`` before, and ``_forget()`` after it has released them.
    """

    _token = ""  # 32 hexadecimal digits. Saved with the job, in a file for its user alone

    def _begin(self) -> None:
        self._token = secrets.token_hex(16)

    def _addresses(self) -> dict[str, list[str]]:
        """Of each mesh, in the order of its hosts. May wait until the scheduler knows them."""
        raise NotImplementedError

    def _state(self) -> JobState:
        attached = self._attached()
        addresses = self._addresses()
        self._write_token()
        for name, urls in addresses.items():
            attached.attach(name, urls, self._token_file(), str(self._apply_id))
        return JobState({name: attached.hosts[name] for name in addresses})

    def _attached(self) -> Attached:
        if self._here is None:
            self._here = Attached()
        found: Attached = self._here
        return found

    def _let_go(self, what: str = "stop") -> None:
        if self._here is not None:
            self._here.let_go(_GRACE_S, what)

    def _forget(self) -> None:
        self._here, self._token = None, ""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._token_file())
        with contextlib.suppress(OSError):  # others' are in there
            os.rmdir(os.path.dirname(self._token_file()))

    def _token_file(self) -> str:
        """Where this process reads it when it attaches: in the user's runtime folder."""
        return os.path.join(os.path.dirname(_core.host_token_file()), f"job-{self._apply_id}.token")

    def _write_token(self) -> None:
        """Also where it is: one that was killed, or had no room, may have left a part of it."""
        _saved.replace(self._token_file(), bytes.fromhex(self._token))


def worker_command(python_exe: str, bind: str, token_file: str | None = None) -> list[str]:
    """What a machine runs to be a host: ``monarch worker``.

    Args:
        python_exe: the interpreter there, perhaps with arguments or ``env NAME=VALUE`` before it.
        bind: as ``monarch worker --bind``.
        token_file: a file there; None: the token comes as the first line of stdin.
    """
    token = ["--token-stdin"] if token_file is None else ["--token-file", token_file]
    return [*shlex.split(python_exe), "-m", "monarch", "worker", "--bind", bind, *token]
