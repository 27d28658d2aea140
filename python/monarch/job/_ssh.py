"""A job on machines that one reaches by ``ssh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.job._login import LoginJob
from monarch.job._logins import Login, LoginError, close_all, told

__all__ = ["SSHJob"]

# What is given first counts for ssh: ssh_args come before these.
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none")


class SSHJob(LoginJob):
    """Hosts that OpenSSH's client ``ssh`` logs in to, with this user's configuration, keys, agent and known hosts.

    Scripts reach the workers at the ``HostName`` that ``ssh`` has for a host, on ``monarch_port``, over TCP with TLS.
    By ``ssh`` they are only started, asked after and ended.
    """

    def __init__(
        self,
        python_exe: str = "python",
        ssh_args: Sequence[str] = (),
        monarch_port: int = 22222,
        transport: str = "tcp",
    ) -> None:
        """
        Args:
            python_exe: the interpreter there, which has monarch; perhaps with ``env NAME=VALUE`` before it.
            ssh_args: for ``ssh``, before the host: ``["-J", "login1", "-p", "2222"]``.
            monarch_port: that workers listen on; 0: any that is free.
            transport: ``"tcp"``, with TLS. There is no other.
        """
        super().__init__(python_exe, monarch_port, transport)
        if isinstance(ssh_args, str) or not all(isinstance(word, str) for word in ssh_args):
            raise TypeError(f"ssh_args must be a sequence such as ['-p', '2222'], but is {ssh_args!r}")
        self._ssh_args = list(ssh_args)

    def _login(self, host: str) -> list[str]:
        return ["ssh", *self._ssh_args, *_OPTIONS, "--", host]

    def _dialled(self, hosts: list[str], until: float) -> dict[str, str]:
        """As ``ssh`` itself resolves names; it connects to nobody for that."""
        names, failures, logins = {}, {}, []
        try:
            for host in hosts:
                logins.append(Login(host, ["ssh", *self._ssh_args, "-G", "--", host]))
            for login in logins:
                try:
                    names[login.host] = _host_name(login.all(until))
                except LoginError as error:
                    failures[login.host] = str(error)
        finally:
            close_all(logins)
        if failures:
            raise RuntimeError(f"{self!r}: ssh does not know how to reach some hosts:\n{told(failures)}")
        return names

    def _config(self) -> Any:
        return (*super()._config(), self._ssh_args)


def _host_name(config: str) -> str:
    for line in config.splitlines():
        key, _, value = line.partition(" ")
        if key == "hostname" and value:
            return value
    raise LoginError("`ssh -G` says no hostname")
