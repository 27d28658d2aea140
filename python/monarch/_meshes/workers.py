"""Hosts that outlive scripts: ``monarch-hostd`` (``src/monarch/host/hostd.h``), and scripts that attach to it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._checks import check_text
from monarch._config import settings
from monarch._errors.exceptions import SupervisionError
from monarch._meshes.agents import Agents, ExpectedAgents
from monarch._meshes.host_mesh import HostMesh, Spawned
from monarch._meshes.mesh import whole
from monarch._meshes.proc_mesh import ProcMesh
from monarch._meshes.worker_addresses import (
    Address,
    certificates_of,
    dialled,
    in_process,
    inherited,
    parsed,
    token_file,
    warn_of_trust,
)
from monarch._processes import launch
from monarch._runtime import runtime
from monarch._values.geometry import Extent, Point

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.worker_addresses import Ca, Key

__all__ = [
    "attach_to_workers",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]


def attach_to_workers(
    *, private_key: Key = None, ca: Ca = None, workers: Sequence[str | Future[str]], name: str | None = None
) -> HostMesh:
    """The hosts where these worker loops run, along the dimension ``hosts``, in the order of the list. Returns at once.

    Each serves this script until it shuts them down, stops or ends; what it has started there ends with it. One that
    does not run yet is waited for, for ``host_spawn_ready_timeout`` (30 s). ``initialized``, and whatever is done with
    a host, raises ``SupervisionError`` that names its address if it cannot be attached to. Over TCP a host that gives
    no sign of life for ``host_lease`` (5 s) is lost, with all that runs there.

    An address that is a future is waited for by what is done with the hosts: they are attached to when all addresses
    are there, and none of them if one fails.

    Both sides must have the same token (``MONARCH_TOKEN_FILE``); all that goes over a network is encrypted.

    Args:
        private_key: PEM, bytes or a file that only this user can read: this script's private key for ``tcp://``, and
            behind it its certificate, in place of those that are made from the token.
        ca: None: over TCP, a host must show by its certificate that it knows the token, before it is told anything.
            PEM, bytes or a file: it must have a certificate of one of these, and ``private_key`` is given too.
            ``"trust_all_connections"``: any certificate will do, so that whoever sits in between may listen.
        workers: their addresses, or futures of them: ``tcp://HOST:PORT`` or, with the same meaning,
            ``tls://HOST:PORT``, an address of IPv6 in brackets; ``ipc://PATH`` or ``ipc://@NAME``, on this machine and
            of this user; ``inproc://N``, a worker loop that this process has started. Of
            ``tcp://A:P@tcp://B:Q`` the first is dialled. ``IDENTITY@`` in front says which host is meant
            (``monarch.job.service_proc_addr``): another one there refuses. Nonsense is a ``ValueError``.
        name: for reports.
    """
    if isinstance(workers, str) or not isinstance(workers, Sequence) or not workers:
        raise TypeError(f"workers must be a sequence of addresses such as ['ipc:///tmp/host'], but is {workers!r}")
    if name is not None:
        check_text("the name of the hosts", name)
    there = [worker for worker in workers if not isinstance(worker, _core.FutureBase)]
    addresses = [dialled(worker) for worker in there]
    has_tcp = len(there) < len(workers) or any(address.is_tcp for address in addresses)
    certificates = certificates_of(private_key, ca, has_tcp)
    trusts_all = ca is not None and not certificates[0]
    _core.check_hosts([address.url for address in addresses], trusts_all, *certificates)
    if trusts_all and has_tcp:
        warn_of_trust()
    waits_for = list(workers) if len(there) < len(workers) else None
    urls = [address.url for address in addresses]
    return attach(urls, token_file(), trusts_all, name or "hosts", certificates, waits_for)


def attach(
    urls: list[str], token_in: str, trusts_all: bool, name: str, certificates: tuple[bytes, bytes] = (b"", b""),
    waits_for: list[str | Future[str]] | None = None, wait_s: float | None = None,
) -> HostMesh:  # fmt: skip
    """As :func:`attach_to_workers`, with the token in that file.

    ``waits_for``: all addresses, where some are yet to come. ``wait_s``: for one at which nobody listens; None: as
    configured.
    """
    runtime.ensure(processes=False)  # those there start them
    count = len(urls if waits_for is None else waits_for)
    extent = Extent(["hosts"], [count])
    hosts = HostMesh(whole(["hosts"], [count]), Spawned(), True, None)
    hosts._outlives = True
    hosts._in_job = (None, name)
    labels = [f"rank {Point(rank, extent)!r} of {name!r}" for rank in range(count)]
    limits = _limits(wait_s)

    def attach_now(urls: list[str]) -> ProcMesh:
        nodes = _core.attach_hosts(urls, token_in, trusts_all, labels, name, *limits, *certificates)
        return ProcMesh(nodes, hosts._view, name, owned=True)

    if waits_for is None:
        procs = attach_now(urls)
        hosts._agents = Agents(procs._nodes)
        hosts._agents.procs = procs
        return hosts

    def wait_for_all() -> Callable[[], ProcMesh]:
        there = [_expected(worker, label, rank, name) for rank, (worker, label) in enumerate(zip(waits_for, labels))]
        return lambda: attach_now(there)

    hosts._agents = ExpectedAgents(wait_for_all)
    return hosts


def _limits(wait_s: float | None) -> tuple[float, float]:
    limit = settings.seconds("host_spawn_ready_timeout")
    return settings.seconds("host_lease"), limit if wait_s is None else min(limit, wait_s)


def attach_some(
    urls: list[str], ranks: Sequence[int], token_in: str, name: str, wait_s: float | None = None
) -> HostMesh:
    """As :func:`attach`, to these of the hosts only: no other one may be used."""
    runtime.ensure(processes=False)
    count = len(urls)
    hosts = HostMesh(whole(["hosts"], [count]), Spawned(), bool(ranks), None)
    hosts._outlives = True
    hosts._in_job = (None, name)
    if not ranks:
        hosts._spawned.ended = True
        return hosts
    labels = [f"rank {Point(rank, Extent(['hosts'], [count]))!r} of {name!r}" for rank in ranks]
    limits = _limits(wait_s)
    there = _core.attach_hosts([urls[rank] for rank in ranks], token_in, False, labels, name, *limits, b"", b"")
    nodes = dict(zip(ranks, there))
    hosts._agents = Agents([nodes.get(rank, there[0]) for rank in range(count)])
    hosts._agents.procs = ProcMesh(there, whole(["hosts"], [len(there)]), name, owned=True)
    return hosts


def _expected(worker: str | Future[str], label: str, rank: int, name: str) -> str:
    """The address, once it is there."""
    try:
        url = dialled(worker if isinstance(worker, str) else worker.get()).url
        _core.check_hosts([url], True, b"", b"")
        return url
    except Exception as failed:
        error = SupervisionError(f"{label} cannot be attached to: its address cannot be had: {failed}")
        error.mesh, error.rank, error.coordinates = name, rank, (rank,)
        raise error from failed


def run_worker_loop_forever(*, private_key: Key = None, ca: Ca = None, address: str) -> None:
    """Makes this machine a host at ``address``, for scripts that attach to it. When one shuts it down the program ends.

    At Ctrl-C it ends too, with status 130. Scripts must have the same ``MONARCH_TOKEN_FILE``, or none as this program.

    Args:
        private_key: PEM, bytes or a file that only this user can read: the host's private key for ``tcp://``, and
            behind it its certificate, in place of those that are made from the token.
        ca: None, or ``"trust_all_connections"``: who attaches must know the token. PEM, bytes or a file: also have a
            certificate of one of these; with ``private_key``.
        address: as in :func:`attach_to_workers`. Besides: port 0 is any that is free, and a line on stderr says
            where scripts find the host then; ``tcp://*:PORT`` and ``tcp://[::]:PORT`` serve on all
            interfaces; of ``tcp://A:P@tcp://B:Q`` the host listens at the second, and is reached at the first;
            ``tcp://HOST:fd7`` takes a socket over that this program has been given bound, as descriptor 7, and that
            stays open in this program. ``IDENTITY@`` in front is whom it takes itself for: who attaches by another
            identity is refused, also by any but ``service`` where there is none.
    """
    try:
        run_worker_loop_until_shutdown(private_key=private_key, ca=ca, address=address)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(0)


_INTERRUPTED = 128 + signal.SIGINT  # as a shell says it


def run_worker_loop_until_shutdown(*, private_key: Key = None, ca: Ca = None, address: str) -> None:
    """As :func:`run_worker_loop_forever`, and returns when a script has shut the host down.

    ``OSError`` if it cannot be one there.

    Args:
        private_key: as there.
        ca: as there.
        address: as there.
    """
    with Daemon(private_key, ca, address) as daemon:
        daemon.announce()
        daemon.wait()


def start_worker_loop_forever(*, private_key: Key = None, ca: Ca = None, address: str) -> Future[None]:
    """As :func:`run_worker_loop_until_shutdown` beside the program, with which it ends; the future is its end.

    Args:
        private_key: as in :func:`run_worker_loop_forever`.
        ca: as there.
        address: as there. ``inproc://N``, a number: for this process alone.
    """
    from monarch._calls.python_futures import on_thread

    daemon = Daemon(private_key, ca, address)
    daemon.announce()

    def wait() -> None:
        with daemon:
            daemon.wait()

    return on_thread(wait, "monarch-worker-loop")


def hostd_program() -> str:
    """The path of ``monarch-hostd``, which lies beside the extension."""
    return os.path.join(os.path.dirname(_core.__file__), "bin", "monarch-hostd")


class Daemon:
    """A monarch-hostd that ends with this process, or with the block. ``OSError`` if it cannot be one there."""

    def __init__(self, private_key: Key, ca: Ca, address: str) -> None:
        where = parsed(address)
        certificates = certificates_of(private_key, ca, where.is_tcp)
        if _core.in_simulation():
            raise NotImplementedError("worker loops: not in monarch.testing.simulate(), which has no real processes")
        self._while_it_runs = contextlib.ExitStack()
        _everywhere.add(self)
        try:
            self._start(where, certificates)
            assert self._process.stdout is not None and self._process.stderr is not None
            self.address = self._process.stdout.readline().removesuffix("\n")  # where it is reached
        except BaseException:
            self._while_it_runs.close()
            raise
        self._is_chosen_there = where.is_chosen_there
        if not self.address:
            why = self._process.stderr.read().strip()
            self.__exit__()
            raise OSError(why or f"monarch-hostd ended with status {self._process.returncode}")

    def _start(self, where: Address, certificates: tuple[bytes, bytes]) -> None:
        kept = inherited(where)
        if where.scheme == "inproc":
            where = self._take_number(where)
        given = {"--defaults": launch.offered()}
        if certificates[1]:
            given["--credentials"] = _core.credentials_text(*certificates)
        command = [hostd_program(), where.url, "--token-file", token_file()]
        import subprocess

        with contextlib.ExitStack() as until_it_runs:
            lifeline, ours = os.pipe()
            until_it_runs.callback(os.close, lifeline)
            self._while_it_runs.callback(os.close, ours)
            command += ["--lifeline", str(lifeline)]
            kept.append(lifeline)
            for name, content in given.items():
                file = until_it_runs.enter_context(open(os.memfd_create("monarch"), "w+b"))
                file.write(content)
                file.seek(0)
                command += [name, str(file.fileno())]
                kept.append(file.fileno())
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=kept, text=True,
                errors="surrogateescape",
            )  # fmt: skip

    def _take_number(self, where: Address) -> Address:
        """Its address outside of this process, which nobody else is told."""
        number = os.getpid(), int(where.rest)
        url = f"ipc://@monarch-inproc-{os.getpid()}-{os.urandom(8).hex()}"
        if in_process.setdefault(number, url) != url:
            raise OSError(f"cannot listen at inproc://{where.rest}: another worker loop of this process does")
        self._while_it_runs.callback(in_process.pop, number)
        return Address(where.identity, "ipc", url.removeprefix("ipc://"))

    def announce(self) -> None:
        """On stderr, what nobody could know before."""
        if self._is_chosen_there:
            _core.log_line(f"a worker loop listens at {self.address}")

    def wait(self) -> None:
        """Until it has ended."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with contextlib.suppress(OSError, ValueError):  # nobody hears it, and it is a host all the same
                if sys.stderr is not None:
                    sys.stderr.write(line)
        self._process.wait()

    def let_go(self) -> None:
        """It ends when nobody else holds it."""
        self._while_it_runs.close()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: Any) -> None:
        self._while_it_runs.close()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


_everywhere: weakref.WeakSet[Daemon] = weakref.WeakSet()


def _let_all_go() -> None:
    """In a child by fork, which may outlive this process: its hosts are not to."""
    for daemon in list(_everywhere):
        daemon.let_go()


os.register_at_fork(after_in_child=_let_all_go)
