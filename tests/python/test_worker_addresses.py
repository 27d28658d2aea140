"""What the addresses of worker loops say: identities, futures, aliases, descriptors, and who has which certificate."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from hostd import ATTACH, LIMIT, Daemon
from script_run import Run

from monarch.actor import (
    Actor,
    SupervisionError,
    attach_to_workers,
    endpoint,
    returns_future,
    start_worker_loop_forever,
)
from monarch.config import configured
from monarch.job import new_service_proc_id, service_proc_addr, service_proc_addrs


def of_worker():
    """A class that goes by value: hosts do not know this file."""

    class Worker(Actor):
        @endpoint
        def pid(self):
            return os.getpid()

    return Worker


@pytest.fixture
def token(folder, monkeypatch):
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")


@pytest.fixture
def loops(token):
    """Starts worker loops, which end with the test."""
    from monarch._meshes.workers import Daemon

    with contextlib.ExitStack() as stack:
        yield lambda address, **keys: stack.enter_context(Daemon(keys.get("private_key"), keys.get("ca"), address))


def is_attached(*addresses, **keys):
    """Attaches, uses the hosts, and lets go of them."""
    hosts = attach_to_workers(workers=list(addresses), **keys)
    pids = hosts.spawn_procs().spawn("worker", of_worker()).pid.call().get(timeout=LIMIT).values()
    hosts.stop().get(timeout=LIMIT)
    return len(set(pids)) == len(addresses) and os.getpid() not in pids


def refusal(*addresses, **keys):
    hosts = attach_to_workers(workers=list(addresses), **keys)
    with pytest.raises(SupervisionError) as info:
        hosts.initialized.get(timeout=LIMIT)
    hosts.stop().get(timeout=LIMIT)
    return str(info.value)


# ---- Which transport ----


@pytest.mark.feature(57, "tcp", "ipc")
def test_scripts_attach_to_it(daemons):
    assert daemons[0].run("hosts.initialized.get(); hosts.stop().get()").ok()


@pytest.mark.feature(57, "tcp")
def test_tls_is_another_word_for_tcp(folder, token):
    daemon = Daemon(folder, scheme="tcp")
    assert is_attached(daemon.address.replace("tcp://", "tls://"))
    assert daemon.end() == (0, "")


@pytest.mark.feature(57, "tcp")
def test_an_address_of_ipv6_stands_in_brackets(folder, token):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    daemon = Daemon(folder, address="tcp://[::1]:0")
    assert daemon.address.startswith("tcp://[::1]:") and not daemon.address.endswith(":0")
    assert is_attached(daemon.address)
    assert daemon.end() == (0, "")


@pytest.mark.feature(57, "inproc")
def test_a_worker_loop_within_a_process_is_known_there_alone(token):
    loop = start_worker_loop_forever(ca="trust_all_connections", address="inproc://7")
    with pytest.raises(OSError, match="cannot listen at inproc://7: another worker loop of this process does"):
        start_worker_loop_forever(ca="trust_all_connections", address="inproc://7")
    assert is_attached("inproc://7", ca="trust_all_connections")
    run = Run(ATTACH, args=("inproc://7",)).done()
    assert run.status == 1 and "there is no worker loop at inproc://7 in this process" in run.err
    attach_to_workers(workers=["inproc://7"]).shutdown().get(timeout=LIMIT)
    loop.get(timeout=LIMIT)
    with pytest.raises(ValueError, match="there is no worker loop at inproc://7 in this process"):
        attach_to_workers(workers=["inproc://7"])


# ---- Identities ----


@pytest.mark.feature(57, "identities of hosts")
def test_a_host_serves_who_means_it_and_tells_others_who_it_is(folder, token, scheme):
    ids = [new_service_proc_id() for _ in range(3)]
    daemons = [Daemon(folder, number, scheme, identity=ids[number]) for number in range(2)]
    named = [daemon.address for daemon in daemons]
    bare = [address.partition("@")[2] for address in named]
    assert named == service_proc_addrs(bare, ids[:2])
    assert is_attached(*named)
    assert is_attached(*bare)
    text = refusal(named[0], service_proc_addr(bare[1], ids[2]))
    assert f"the host at {ids[2]}@{bare[1]} cannot be attached to: it is {ids[1]}, not {ids[2]}" in text
    assert "rank {'hosts': 1" in text
    assert [daemon.end() for daemon in daemons] == [(0, "")] * 2


@pytest.mark.feature(57, "identities of hosts")
def test_a_host_without_an_identity_is_service(folder, token, scheme):
    daemon = Daemon(folder, scheme=scheme)
    assert is_attached(f"service@{daemon.address}")
    text = refusal(f"service<2MuAHeDjLCEd>@{daemon.address}")
    assert "cannot be attached to: it is service, not service<2MuAHeDjLCEd>" in text
    assert daemon.end() == (0, "")


# ---- Futures ----


@returns_future
async def soon(value):
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.feature(57, "futures as addresses")
def test_a_future_of_an_address_is_waited_for_by_the_use_of_the_hosts(daemons, token):
    there = threading.Event()

    @returns_future
    async def later(address):
        there.wait(LIMIT)
        return address

    hosts = attach_to_workers(workers=[later(daemons[0].address), daemons[1].address], name="machines")
    assert hosts.sizes == {"hosts": 2} and hosts.slice(hosts=0).sizes == {}
    initialized = hosts.initialized
    with pytest.raises(TimeoutError):
        initialized.get(timeout=0.01)
    there.set()
    assert initialized.get(timeout=LIMIT) is True
    procs = hosts.slice(hosts=0).spawn_procs()
    assert isinstance(procs.spawn("worker", of_worker()).pid.call_one().get(timeout=LIMIT), int)
    assert hosts.initialized.get(timeout=LIMIT) is True
    hosts.stop().get(timeout=LIMIT)


@pytest.mark.feature(57, "futures as addresses")
@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (KeyError("no allocation"), "no allocation"), ("foo://a", "invalid worker address"), (7, "must be a str"),
        ("tcp://*:1", "nobody can connect to '\\*'"), ("inproc://99", "there is no worker loop at inproc://99"),
    ],
    ids=str,
)  # fmt: skip
def test_a_future_that_brings_no_address_is_named_by_what_is_done_with_the_hosts(folder, token, outcome, text):
    hosts = attach_to_workers(workers=[f"ipc://{folder}/nobody", soon(outcome)], name="machines")
    named = r"rank \{'hosts': 1/2\} of 'machines' cannot be attached to: its address cannot be had: .*" + text
    with pytest.raises(SupervisionError, match=named) as info:
        hosts.initialized.get(timeout=LIMIT)
    assert info.value.rank == 1 and info.value.__cause__ is not None
    with pytest.raises(SupervisionError, match=named):
        hosts.spawn_procs()
    hosts.shutdown().get(timeout=LIMIT)


@pytest.mark.feature(57, "futures as addresses")
def test_hosts_that_are_shut_down_before_their_addresses_are_there_are_not_attached_to(folder, token):
    daemon = Daemon(folder)
    there = threading.Event()

    @returns_future
    async def later(address):
        there.wait(LIMIT)
        return address

    hosts = attach_to_workers(workers=[later(daemon.address)])
    initialized = hosts.initialized
    hosts.shutdown().get(timeout=LIMIT)
    there.set()
    with pytest.raises(RuntimeError, match="already been shut down"):
        initialized.get(timeout=LIMIT)
    assert is_attached(daemon.address), "it runs on"
    assert daemon.end() == (0, "")


# ---- Where a host listens, and where it is reached ----


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.feature(57, "bind aliases")
def test_an_alias_is_reached_at_its_left_and_listens_at_its_right(folder, token):
    port = free_port()
    daemon = Daemon(folder, address=f"tcp://127.0.0.2:{port}@tcp://0.0.0.0:{port}")
    assert daemon.address == f"tcp://127.0.0.2:{port}"
    other = Daemon(folder, 1, "tcp")
    assert is_attached(daemon.address, other.address)
    # A script may be given the whole text.
    assert is_attached(f"tcp://127.0.0.3:{port}@tcp://0.0.0.0:{port}")
    assert daemon.end() == other.end() == (0, "")


@pytest.mark.feature(57, "bind aliases")
@pytest.mark.parametrize("host", ["*", "[::]", "0.0.0.0"])
def test_a_host_on_all_interfaces_is_reached_by_the_name_of_the_machine(folder, token, host):
    daemon = Daemon(folder, address=f"tcp://{host}:0")
    name, _, port = daemon.address.removeprefix("tcp://").partition(":")
    assert name == socket.gethostname()
    # By each of its addresses, the processes that are started there too.
    assert is_attached(f"tcp://127.0.0.1:{port}")
    assert is_attached(f"tcp://127.0.0.9:{port}")
    with pytest.raises(ValueError, match="nobody can connect to"):
        attach_to_workers(workers=[f"tcp://{host}:{port}"])
    assert daemon.end() == (0, "")


# ---- Descriptors ----


@pytest.mark.feature(57, "inherited descriptors")
@pytest.mark.parametrize("listens", [False, True])
def test_a_socket_that_is_bound_is_taken_over(loops, listens):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if listens:
            bound.listen()
        port = bound.getsockname()[1]
        loops(f"tcp://127.0.0.1:fd{bound.fileno()}")
        assert is_attached(f"tcp://127.0.0.1:{port}")


@pytest.mark.feature(57, "inherited descriptors")
def test_a_socket_that_is_taken_over_may_have_an_alias_and_an_identity(loops):
    with socket.create_server(("0.0.0.0", 0)) as bound:
        port = bound.getsockname()[1]
        loops(f"service<2MuA>@tcp://127.0.0.5:{port}@tcp://0.0.0.0:fd{bound.fileno()}")
        assert is_attached(f"service<2MuA>@tcp://127.0.0.5:{port}")


@pytest.mark.feature(57, "inherited descriptors")
def test_a_descriptor_that_is_no_bound_socket_of_tcp_is_refused(loops, folder):
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"{folder}/unix")
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    read, write = os.pipe()
    with unix, datagrams, socket.socket() as unbound, os.fdopen(read), os.fdopen(write, "w"):
        for fd, why in (
            (read, "it is no socket"), (unix.fileno(), "it is no socket of TCP"),
            (datagrams.fileno(), "it is no socket of TCP"), (unbound.fileno(), "it is not bound to a port"),
            (10**6, "this process has not been given one"),
        ):  # fmt: skip
            with pytest.raises(OSError, match=f"cannot listen on descriptor {fd}: {why}"):
                loops(f"tcp://127.0.0.1:fd{fd}")
    with pytest.raises(ValueError, match="nobody can connect to a descriptor"):
        attach_to_workers(workers=["tcp://127.0.0.1:fd7"])


# ---- Certificates of the user's own ----


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture
def certificates(folder):
    """ca.crt and host.pem, key and certificate; other.crt and other.pem, of another authority."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for authority, host in (("ca", "host"), ("other", "stranger")):
        own, its = f"{folder}/{authority}", f"{folder}/{host}"
        openssl("req", "-x509", *key, "-subj", f"/CN={authority}", "-keyout", f"{own}.key", "-out", f"{own}.crt")
        openssl(
            "req", "-x509", "-CA", f"{own}.crt", "-CAkey", f"{own}.key", *key, "-subj", f"/CN={host}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", f"{its}.pem", "-out", f"{its}.crt",
        )  # fmt: skip
        with open(f"{its}.pem", "a") as pem:
            pem.write(Path(f"{its}.crt").read_text())
        os.chmod(f"{its}.pem", 0o600)
    return Path(folder)


@pytest.mark.filterwarnings("ignore:ca=.trust_all_connections")
@pytest.mark.feature(57, "certificates of one's own")
def test_both_sides_may_have_certificates_of_the_users_own(loops, certificates):
    own = {"private_key": certificates / "host.pem", "ca": certificates / "ca.crt"}
    port = free_port()
    loops(f"tcp://127.0.0.1:{port}", **own)
    assert is_attached(f"tcp://127.0.0.1:{port}", **own)
    assert is_attached(f"tls://127.0.0.1:{port}", **{name: path.read_bytes() for name, path in own.items()})
    assert is_attached(f"tcp://127.0.0.1:{port}", private_key=own["private_key"], ca="trust_all_connections")


@pytest.mark.feature(57, "certificates of one's own")
@pytest.mark.parametrize(
    ("key", "ca", "why"),
    [
        ("stranger.pem", "other.crt", "the peer's certificate is not"), ("stranger.pem", "ca.crt", ""),
        ("host.pem", "other.crt", "the peer's certificate is not"), (None, None, "the peer's certificate is not"),
    ],
)  # fmt: skip
def test_who_has_one_of_another_authority_is_not_attached(loops, certificates, key, ca, why):
    own = {"private_key": certificates / "host.pem", "ca": certificates / "ca.crt"}
    port = free_port()
    loops(f"tcp://127.0.0.1:{port}", **own)
    with configured(host_spawn_ready_timeout="1s"):
        keys = {} if key is None else {"private_key": certificates / key, "ca": certificates / ca}
        assert f"cannot be attached to: {why}" in refusal(f"tcp://127.0.0.1:{port}", **keys)
    assert is_attached(f"tcp://127.0.0.1:{port}", **own)


@pytest.mark.feature(57, "certificates of one's own")
def test_a_daemon_reads_them_from_files(folder, certificates, token):
    files = ("--ca", f"{folder}/ca.crt", "--private-key", f"{folder}/host.pem")
    daemon = Daemon(folder, scheme="tcp", options=files)
    assert is_attached(daemon.address, private_key=certificates / "host.pem", ca=certificates / "ca.crt")
    assert daemon.end() == (0, "")


def test_a_host_may_take_any_certificate_of_who_knows_the_token(loops, certificates):
    port = free_port()
    loops(f"tcp://127.0.0.1:{port}", private_key=certificates / "host.pem", ca="trust_all_connections")
    assert is_attached(f"tcp://127.0.0.1:{port}", private_key=certificates / "stranger.pem", ca=certificates / "ca.crt")


@pytest.mark.parametrize("use", ["attach", "serve"])
def test_wrong_certificates_are_said_at_once(certificates, token, use):
    key, ca = certificates / "host.pem", certificates / "ca.crt"

    def give(error, text, address="tcp://127.0.0.1:0", **keys):
        with pytest.raises(error, match=text):
            if use == "attach":
                attach_to_workers(workers=[address.replace(":0", ":1")], **keys)
            else:
                start_worker_loop_forever(address=address, **keys)

    give(ValueError, "private_key is missing", ca=ca)
    give(ValueError, "ca is missing", private_key=key)
    give(ValueError, "ca is empty", private_key=key, ca=b" ")
    give(ValueError, "are for addresses such as tcp://", "ipc://@nowhere", private_key=key, ca=ca)
    give(TypeError, "private_key must be PEM", private_key=str(key), ca=ca)
    give(ValueError, "no authority's certificate", private_key=key, ca=b"nonsense")
    give(ValueError, "no usable certificate", private_key=certificates / "ca.key", ca=ca)
    give(FileNotFoundError, "nothing.pem", private_key=certificates / "nothing.pem", ca=ca)
    os.chmod(key, 0o640)
    give(ValueError, "holds a private key that others can read: chmod 600", private_key=key, ca=ca)
