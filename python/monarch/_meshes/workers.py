"""Hosts that outlive scripts: ``monarch-hostd`` (``src/monarch/host/hostd.h``), and scripts that attach to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from monarch import _core
from monarch._checks import check_text
from monarch._config import settings
from monarch._meshes.agents import Agents
from monarch._meshes.host_mesh import HostMesh, Spawned
from monarch._meshes.mesh import whole
from monarch._meshes.proc_mesh import ProcMesh
from monarch._notices import not_yet
from monarch._processes import launch
from monarch._runtime import runtime
from monarch._values.geometry import Extent, Point

if TYPE_CHECKING:
    from monarch._calls.future import Future

__all__ = [
    "attach_to_workers",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]

_Key = bytes | Path | None
_Ca = bytes | Path | Literal["trust_all_connections"] | None
_URL = re.compile(r"(?:(?P<identity>[\w.-]+(?:<\w+>)?)@)?(?P<scheme>[a-z]+)://(?P<rest>.+)")
_LATER = ("tls", "quic", "metatls", "metaquic", "inproc")


def attach_to_workers(
    *, private_key: _Key = None, ca: _Ca = None, workers: Sequence[str | Future[str]], name: str | None = None
) -> HostMesh:
    """The hosts where these worker loops run, along the dimension ``hosts``, in the order of the list. Returns at once.

    Each serves this script until it shuts them down, stops or ends; what it has started there ends with it. One that
    does not run yet is waited for, for ``host_spawn_ready_timeout`` (30 s). ``initialized``, and whatever is done with
    a host, raises ``SupervisionError`` that names its address if it cannot be attached to. Over TCP a host that gives
    no sign of life for ``host_lease`` (5 s) is lost, with all that runs there.

    Both sides must have the same token (``MONARCH_TOKEN_FILE``); all that goes over a network is encrypted.

    Args:
        private_key: None.
        ca: None: over TCP, a host must show by its certificate that it knows the token, before it is told anything.
            ``"trust_all_connections"``: any certificate will do, so that whoever sits in between may listen.
        workers: their addresses: ``tcp://HOST:PORT``; ``ipc://PATH`` or ``ipc://@NAME``, on this machine and of this
            user.
        name: for reports.
    """
    _check_keys(private_key, ca)
    if isinstance(workers, str) or not isinstance(workers, Sequence) or not workers:
        raise TypeError(f"workers must be a sequence of addresses such as ['ipc:///tmp/host'], but is {workers!r}")
    if name is not None:
        check_text("the name of the hosts", name)
    addresses = [_check_address(worker) for worker in workers]
    if ca is not None and any(address.startswith("tcp:") for address in addresses):
        _warn_of_trust()
    return attach(addresses, _token_file(), ca is not None, name or "hosts")


def attach(addresses: list[str], token_file: str, trust: bool, name: str) -> HostMesh:
    """As :func:`attach_to_workers`, with the token of that file. ``trust``: whatever their certificates."""
    runtime.ensure()
    extent = Extent(["hosts"], [len(addresses)])
    labels = [f"rank {Point(rank, extent)!r} of {name!r}" for rank in range(len(addresses))]
    nodes = _core.attach_hosts(
        addresses, token_file, trust, labels, name,
        settings.seconds("host_lease"), settings.seconds("host_spawn_ready_timeout"),
    )  # fmt: skip
    hosts = HostMesh(whole(["hosts"], [len(addresses)]), Spawned(), True, None)
    hosts._own_procs = ProcMesh(nodes, hosts._view, name, owned=True)
    hosts._agents = Agents(nodes)
    hosts._outlives = True
    return hosts


def run_worker_loop_forever(*, private_key: _Key = None, ca: _Ca = None, address: str) -> None:
    """Makes this machine a host at ``address``, for scripts that attach to it. When one shuts it down the program ends.

    Scripts must have the same ``MONARCH_TOKEN_FILE``, or none as this program.

    Args:
        private_key: None.
        ca: ``"trust_all_connections"``.
        address: as in :func:`attach_to_workers`.
    """
    run_worker_loop_until_shutdown(private_key=private_key, ca=ca, address=address)
    sys.exit(0)


def run_worker_loop_until_shutdown(*, private_key: _Key = None, ca: _Ca = None, address: str) -> None:
    """As :func:`run_worker_loop_forever`, and returns when a script has shut the host down.

    ``OSError`` if it cannot be one there.

    Args:
        private_key: None.
        ca: ``"trust_all_connections"``.
        address: as in :func:`attach_to_workers`.
    """
    _check_keys(private_key, ca)
    with _Daemon(address) as daemon:
        daemon.wait()


def start_worker_loop_forever(*, private_key: _Key = None, ca: _Ca = None, address: str) -> Future[None]:
    """As :func:`run_worker_loop_until_shutdown` beside the program, with which it ends; the future is its end.

    Args:
        private_key: None.
        ca: ``"trust_all_connections"``.
        address: as in :func:`attach_to_workers`.
    """
    from monarch._calls.python_futures import on_thread

    _check_keys(private_key, ca)
    daemon = _Daemon(address)

    def wait() -> None:
        with daemon:
            daemon.wait()

    return on_thread(wait, "monarch-worker-loop")


def hostd_program() -> str:
    """The path of ``monarch-hostd``, which lies beside the extension."""
    return os.path.join(os.path.dirname(_core.__file__), "bin", "monarch-hostd")


class _Daemon:
    """A monarch-hostd that ends with this process, or with the block."""

    def __init__(self, address: str) -> None:
        address = _check_address(address)
        if _core.in_simulation():
            raise NotImplementedError("worker loops: not in monarch.testing.simulate(), which has no real processes")
        lifeline, self._lifeline = os.pipe()
        defaults, to_defaults = os.pipe()
        command = [hostd_program(), address, "--token-file", _token_file()]
        command += ["--defaults", str(defaults), "--lifeline", str(lifeline)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(defaults, lifeline), text=True
        )
        os.close(lifeline)
        os.close(defaults)
        with open(to_defaults, "wb") as pipe:
            pipe.write(launch.offered())
        assert self._process.stdout is not None and self._process.stderr is not None
        if not self._process.stdout.readline():
            why = self._process.stderr.read().strip()
            self.__exit__()
            raise OSError(why or f"monarch-hostd ended with status {self._process.returncode}")

    def wait(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)
        self._process.wait()

    def __enter__(self) -> _Daemon:
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._lifeline)
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _check_keys(private_key: _Key, ca: _Ca) -> None:
    if private_key is not None or ca not in (None, "trust_all_connections"):
        raise NotImplementedError("TLS security plumbing")


def _warn_of_trust() -> None:
    global _warned
    if not _warned:
        warnings.warn(
            'ca="trust_all_connections": certificates of hosts are not checked, so whoever sits in between can listen; '
            "leave ca out to have them checked, at no effort",
            RuntimeWarning,
            stacklevel=3,
        )
    _warned = True


_warned = False


def _token_file() -> str:
    return os.path.abspath(os.environ.get("MONARCH_TOKEN_FILE") or _core.host_token_file())


def _check_address(address: Any) -> str:
    """Without its identity, if it has one."""
    if not isinstance(address, str):
        raise not_yet("a worker address that is no str")
    found = _URL.fullmatch(address)
    scheme = found["scheme"] if found else ""
    if found is not None and scheme in ("ipc", "tcp"):
        return f"{scheme}://{found['rest']}"
    if scheme in _LATER:
        raise not_yet(f"a worker address such as {address!r}")
    raise ValueError(
        f"invalid worker address {address!r}: expected a URL such as 'ipc:///tmp/host' or 'tcp://host:4444'"
    )
