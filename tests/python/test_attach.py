"""attach(): a script that is outside of its cluster, and reaches one host of it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from hostd import HOSTD, LIMIT
from script_run import PROGRAMS, Run, program

from monarch.actor import attach

BEGIN = """
import os, sys
from monarch.actor import attach
attach(os.environ["WAY_IN"])
""" + program("workers/attach.py")  # fmt: skip


class Cluster:
    """Two hosts that only a third one reaches, the way in."""

    def __init__(self, folder):
        self.token = f"{folder}/token"
        with socket.create_server(("127.0.0.1", 0)) as outside:
            os.set_inheritable(outside.fileno(), True)
            unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-r", "-n"]
            self.process = subprocess.Popen(
                [*unshare, sys.executable, PROGRAMS / "attach/cluster.py", HOSTD, str(outside.fileno())],
                env={**os.environ, "MONARCH_TOKEN_FILE": self.token}, pass_fds=[outside.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        self.hosts, self.pids = [], []
        for _ in range(3):
            address, pid = self.process.stdout.readline().split()
            self.hosts.append(address)
            self.pids.append(int(pid))
        self.way_in = self.hosts.pop()
        self.ended = "ended 0 0 0"

    def run(self, text, **env):
        """A script that has attached to both."""
        env = {"MONARCH_TOKEN_FILE": self.token, "WAY_IN": self.way_in, **env}
        return Run(BEGIN + text, args=tuple(self.hosts), env=env)

    def relays(self):
        """Who passes on what is said, one for each connection."""
        with open(f"/proc/{self.pids[2]}/task/{self.pids[2]}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def end(self):
        out, err = self.process.communicate(timeout=LIMIT)
        return out.strip(), err


@pytest.fixture
def cluster(folder):
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("this kernel, or this user, makes no network namespaces")
    made = Cluster(folder)
    yield made
    out, err = made.end()
    # A script that has ended meanwhile may leave a connection that it was about to make anew.
    assert out == made.ended and re.fullmatch(r"(monarch-hostd: refused a connection: .*TLS.*\n)*", err), (out, err)


# ---- What works ----


@pytest.mark.feature(40, "a cluster through one port")
def test_a_script_drives_hosts_that_only_another_one_reaches(cluster):
    run = cluster.run("""
import socket, time
host, port = addresses[0].removeprefix("tcp://").split(":")
try:
    socket.create_connection((host, int(port)), timeout=5)
    print("it is reached without")
except ConnectionRefusedError:
    pass
workers = hosts.spawn_procs({"gpus": 2}).spawn("worker", Worker)
pids = workers.pid.call().get().values()
assert len(set(pids)) == 4 and os.getpid() not in pids
# From host to host nobody needs the way in.
assert workers.slice(hosts=0, gpus=0).add.call_one(workers.slice(hosts=1)).get() == sum(pids[2:])
assert workers.on.call(hosts).get().values() == [[True, False]] * 2 + [[False, True]] * 2
workers.slice(hosts=1, gpus=1).say.call_one("hello").get()

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

big = os.urandom(24 << 20)
assert all(value == big for value in hosts.spawn_procs().spawn("echo", Echo).echo.call(big).get().values())
assert this_host().spawn_procs().spawn("here", Worker).pid.call_one().get() != os.getpid()
hosts.stop().get()
""").ok()  # fmt: skip
    assert run.out == "[3] hello\n"
    # Once more, and nothing of the first is left there.
    cluster.run("hosts.initialized.get(); hosts.stop().get()").ok()
    assert cluster.relays() == []


def test_connections_to_the_way_in_may_break(cluster):
    run = cluster.run("""
workers = hosts.spawn_procs().spawn("worker", Worker)
pids = workers.pid.call().get().values()
for number in range(3):
    print("break", number, flush=True)
    sys.stdin.readline()
    assert workers.pid.call().get(timeout=30).values() == pids
hosts.stop().get()
""")
    for number in range(3):
        run.line(f"break {number}")
        for pid in cluster.relays():
            os.kill(pid, signal.SIGKILL)
        run.tell("\n")
    run.ok()


def test_the_token_need_not_be_there_when_a_connection_is_made_anew(cluster):
    run = cluster.run("""
workers = hosts.spawn_procs().spawn("worker", Worker)
pids = workers.pid.call().get().values()
os.rename(os.environ["MONARCH_TOKEN_FILE"], os.environ["MONARCH_TOKEN_FILE"] + ".away")
print("break", flush=True)
sys.stdin.readline()
assert workers.pid.call().get(timeout=30).values() == pids
os.rename(os.environ["MONARCH_TOKEN_FILE"] + ".away", os.environ["MONARCH_TOKEN_FILE"])
hosts.stop().get()
""")  # fmt: skip
    run.line("break")
    for pid in cluster.relays():
        os.kill(pid, signal.SIGKILL)
    run.tell("\n")
    run.ok()


# ---- What does not ----


def refused(cluster, **env):
    run = cluster.run("""
try:
    hosts.initialized.get()
except SupervisionError as error:
    print("told", error)
hosts.stop().get()
""", **env)  # fmt: skip
    told = run.line("told ")
    run.ok()
    return told


SOON = {"HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "300ms"}


@pytest.mark.feature(40, "a cluster through one port")
def test_what_is_wrong_with_the_way_or_the_host_behind_it_is_told(cluster, folder):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = f"tcp://127.0.0.1:{gone.getsockname()[1]}"
    told = refused(cluster, WAY_IN=nobody, **SOON)
    said = [f"the host at {host} cannot be attached to: by way of {nobody}: " for host in cluster.hosts]
    assert any(each in told for each in said), told
    assert f"{nobody} cannot be reached: Connection refused" in told
    told = refused(cluster, WAY_IN=cluster.way_in.replace("way-in", "other"))
    assert "it is way-in, not other" in told
    cluster.hosts.append("tcp://127.0.0.9:1")
    told = refused(cluster, **SOON)
    assert "tcp://127.0.0.9:1 cannot be reached: Connection refused" in told and "by way of" in told
    cluster.hosts[2] = "tcp://no-such-host.invalid:1"
    assert "no-such-host.invalid" in refused(cluster, **SOON)
    del cluster.hosts[2]
    other = shutil.copy(cluster.token, f"{folder}/other")
    with open(other, "r+b") as file:
        token = file.read()
        file.seek(0)
        file.write(token[::-1])
    told = refused(cluster, MONARCH_TOKEN_FILE=other)
    assert f"by way of {cluster.way_in}: " in told and "certificate" in told


def test_hosts_are_lost_with_the_way_to_them(cluster):
    run = cluster.run("""
workers = hosts.spawn_procs().spawn("worker", Worker)
workers.pid.call().get()
print("up", flush=True)
sys.stdin.readline()
try:
    while True:
        workers.pid.call().get(timeout=30)
except SupervisionError as error:
    print("told", str(error).replace("\\n", " "))
os._exit(0)
""", MONARCH_HOST_LEASE="1s")  # fmt: skip
    run.line("up")
    os.kill(cluster.pids[2], signal.SIGKILL)
    run.tell("\n")
    told = run.line("told ")
    assert "did not come back" in told and f"by way of {cluster.way_in}" in told, told
    run.done()
    cluster.ended = "ended 0 0 -9"


# ---- When it may be called ----


@pytest.mark.feature(40, "the same address again: nothing")
def test_the_same_address_again_is_nothing_and_another_one_is_refused():
    Run("""
attach("tcp://127.0.0.1:4444")
attach("tcp://127.0.0.1:4444")
try:
    attach("tcp://127.0.0.1:4445")
except RuntimeError as error:
    assert "client is already attached through tcp://127.0.0.1:4444, not tcp://127.0.0.1:4445" in str(error), error
    assert "detaching is not supported" in str(error)
this_host().spawn_procs()
attach("tcp://127.0.0.1:4444")
""").ok()  # fmt: skip


def test_it_comes_before_anything_else():
    Run("""
this_host()
this_host().spawn_procs()
try:
    attach("tcp://127.0.0.1:4444")
except RuntimeError as error:
    assert "client was initialized without a remote attachment; call attach('tcp" in str(error), error
else:
    print("accepted")
""").ok()  # fmt: skip


@pytest.mark.parametrize("address", ["ipc:///tmp/x", "inproc://1", "nonsense", "tcp://*:4", "tcp://127.0.0.1:0", ""])
def test_what_is_no_address_of_tcp_is_a_value_error(address):
    with pytest.raises(ValueError, match="tcp://"):
        attach(address)
