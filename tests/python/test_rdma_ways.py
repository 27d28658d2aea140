"""Which way the bytes of buffers go: what forbids one, and the ways between hosts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hostd import ATTACH, Daemon
from script_run import PROLOGUE, Run

from monarch import _core

LIMIT = 30

CHECK = """
import numpy as np
from monarch.rdma import *
class A(Actor):
    def __init__(self):
        self.memory = np.arange(3_000_000, dtype=np.uint32)
    @endpoint
    def buffer(self): return RDMABuffer(self.memory)
    @endpoint
    def sum(self): return int(self.memory.sum())
def check(a):
    buffer = a.buffer.call_one().get()
    print(buffer.explain())
    target = np.zeros(3_000_000, np.uint32)
    buffer.read_into(target).get()
    assert (target == np.arange(3_000_000)).all()
    buffer.write_from(target[::-1] * 2).get()
    assert a.sum.call_one().get() == int(target.sum()) * 2
    assert buffer[:8].fetch_add(1).get() >= 0
    buffer.drop().get()
    try:
        buffer.read().get()
    except BufferDropped:
        print("dropped")
"""


@pytest.mark.parametrize(("paths", "told"), [
    ("", "link (shm: MONARCH_RDMA_PATHS leaves it out; cma: MONARCH_RDMA_PATHS leaves it out)"),
    (
        "shm",
        "link (shm: it does not lie in shared memory of monarch.empty(), which has 64 KiB and more; "
        "cma: MONARCH_RDMA_PATHS leaves it out)",
    ),
    ("cma", "cma (shm: MONARCH_RDMA_PATHS leaves it out)"),
])  # fmt: skip
def test_ways_that_are_not_wanted(paths, told):
    run = Run(CHECK + "check(this_host().spawn_procs().spawn('a', A))", env={"MONARCH_RDMA_PATHS": paths}).ok()
    assert run.out.splitlines() == [told, "dropped"]


# As strict profiles of containers do: process_vm_readv and process_vm_writev are errors (EPERM), in all threads.
FORBIDDING = """
import ctypes, struct
def forbid_copies(to_others_only=False):
    numbers = {"x86_64": (310, 311), "aarch64": (270, 271)}[os.uname().machine]
    numbers = numbers[to_others_only:] + numbers[1:][:to_others_only]
    forbid, allow = (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)  # return, SECCOMP_RET_ERRNO | EPERM; _ALLOW
    lines = [(0x20, 0, 0, 0), (0x15, 1, 0, numbers[0]), (0x15, 0, 1, numbers[1]), forbid, allow]  # by the call's number
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.syscall({"x86_64": 317, "aarch64": 277}[os.uname().machine], 1, 1, program) == 0  # for all threads
class Forbidden(A):
    def __init__(self):
        super().__init__()
        forbid_copies()
"""


@pytest.mark.parametrize("who", ["owner", "reader"])
def test_the_kernel_forbids_copies_between_processes(who):
    begin = "forbid_copies()" if who == "reader" else ""
    actor = "Forbidden" if who == "owner" else "A"
    run = Run(CHECK + FORBIDDING + f"""
kept = this_host().spawn_procs().spawn('a', {actor})
kept.sum.call_one().get()
{begin}
check(kept)
""").ok()  # fmt: skip
    told, dropped = run.out.splitlines()
    # What the owner may not do, fetch what is written, it has asked for in messages instead.
    assert told.startswith("cma (" if who == "owner" else "link (") and dropped == "dropped", told
    assert who == "owner" or "cma: " in told and "seccomp" in told, told


def test_the_kernel_forbids_a_process_to_write_to_others():
    run = Run(CHECK + FORBIDDING + """
kept = this_host().spawn_procs().spawn('a', A)
kept.sum.call_one().get()
forbid_copies(to_others_only=True)
check(kept)
""").ok()  # fmt: skip
    told, dropped = run.out.splitlines()
    assert told.startswith("cma (") and dropped == "dropped", told
    assert told.endswith("; what is written its owner fetches: this process may not do it (process_vm_writev))"), told


def test_in_a_container_with_processes_and_a_small_shm_of_its_own():
    unshare = ["unshare", "-m", "-p", "-f", "--mount-proc"] + ["-r"] * (os.geteuid() != 0)
    inside = [*unshare, "sh", "-c", 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("not run: this kernel, or this user, makes no mount and process namespaces")
    run = Run(CHECK + "check(this_host().spawn_procs().spawn('a', A))", inside=inside).ok()
    assert run.out.splitlines()[0].startswith("cma (") and run.out.endswith("dropped\n")


# The pid of one says nothing to the other, or is another's.
def test_between_containers_with_processes_of_their_own(folder, scheme):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("not run: this kernel, or this user, makes no process namespaces")
    daemon = Daemon(folder, 0, scheme, inside=unshare)
    run = daemon.run(CHECK + """
import warnings
warnings.simplefilter("ignore")  # it goes over TCP
check(hosts.spawn_procs().spawn("a", A))
hosts.shutdown().get()
""", begin=PROLOGUE + ATTACH).ok()  # fmt: skip
    told, dropped = run.out.splitlines()
    assert not told.startswith(("shm", "cma")) and "pid namespace" in told and dropped == "dropped", told
    daemon.end()


@pytest.mark.parametrize("way", ["unix", "exec"])
def test_whatever_way_messages_go(way):
    run = Run(CHECK + "check(this_host().spawn_procs().spawn('a', A))", way=way).ok()
    assert run.out.splitlines()[1] == "dropped"


@pytest.mark.parametrize("scheme", ["tcp"])
@pytest.mark.parametrize(("paths", "told"), [("", "link (shm: "), ("tcp", "tcp (shm: "), ("shm,cma", "cma (shm: ")])
def test_between_hosts_it_goes_over_tcp_and_warns_once(daemons, paths, told):
    run = daemons[0].run(CHECK + """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    procs = hosts.spawn_procs()
    check(procs.spawn("a", A))
    check(procs.spawn("b", A))
print(sum(issubclass(each.category, RDMATcpFallbackWarning) for each in caught))
hosts.shutdown().get()
""", begin=PROLOGUE + ATTACH, env={"MONARCH_RDMA_PATHS": paths}).ok()  # fmt: skip
    lines = run.out.splitlines()
    assert lines[0].startswith(told) and lines[1:] == ["dropped", lines[0], "dropped", "0" if "cma" in paths else "1"]


@pytest.fixture
def far(monkeypatch):
    """As if hosts were on machines of their own."""
    monkeypatch.setenv("MONARCH_RDMA_PATHS", "tcp")


FAR = """
from monarch.rdma import RDMABuffer
import numpy as np

SIZE = 24 << 20

class Owner(Actor):
    def __init__(self):
        self.array = np.arange(SIZE // 8, dtype=np.int64)
        self.of_array = RDMABuffer(self.array)
    @endpoint
    def buffer(self): return self.of_array
    @endpoint
    def sum(self): return int(self.array.sum())
    @endpoint
    def pid(self): return os.getpid()

class User(Actor):
    def __init__(self):
        import warnings
        warnings.simplefilter("ignore")  # it goes over TCP
    @endpoint
    def explain(self, buffer): return buffer.explain()
    def sum_of(self, buffer):
        there = np.zeros(SIZE // 8, np.int64)
        buffer.read_into(there).get()
        return int(there.sum())
    @endpoint
    def read(self, buffer): return self.sum_of(buffer)
    @endpoint
    def write(self, buffer): buffer.write_from(np.full(SIZE // 8, 3)).get()
    @endpoint
    def every_other(self, buffer):
        there = np.zeros((SIZE // 8, 2), np.int64)
        buffer.read_into(there[:, 0]).get()
        return int(there.sum())
    @endpoint
    def streamed(self):
        from monarch import _core
        return _core.streamed()
    @endpoint
    def read_for_ever(self, buffer):
        while True:
            self.sum_of(buffer)

owner = hosts.slice(hosts=0).spawn_procs(name="far").spawn("owner", Owner)
near = hosts.slice(hosts=1).spawn_procs(name="near")
user = near.spawn("user", User)
buffer = owner.buffer.call_one().get()
whole = owner.sum.call_one().get()
"""


LEFT_OUT = "shm: MONARCH_RDMA_PATHS leaves it out; cma: MONARCH_RDMA_PATHS leaves it out"


@pytest.fixture
def by_ucx(far, monkeypatch, request):
    """The same, and UCX, for tests that ask for it, which a machine without NICs would not do by itself."""
    if request.param:
        if missing := _core.why_no_ucx():
            pytest.skip(f"not run: {missing}")
        monkeypatch.setenv("MONARCH_RDMA_PATHS", "tcp,ucx")


@pytest.mark.parametrize("scheme", ["tcp"])
@pytest.mark.parametrize(("by_ucx", "before", "told"), [
    (False, "", f"tcp ({LEFT_OUT})"),
    (False, "configure(rdma_tcp_fallback_parallelism=2)", "tcp (shm: "),
    (False, "configure(rdma_encrypt=False)", f"tcp ({LEFT_OUT}; tcp: without TLS)"),
    (True, "", f"tcp ({LEFT_OUT})"),
    (True, "configure(rdma_encrypt=False, rdma_disable_ibverbs=True)", f"tcp ({LEFT_OUT}; tcp: without TLS)"),
    (True, "configure(rdma_encrypt=False, rdma_ibverbs_target='nic:lo')", f"ucx ({LEFT_OUT})"),
    (True, "configure(rdma_encrypt=False, rdma_ibverbs_target='nic:none0')",
     f"tcp ({LEFT_OUT}; tcp: without TLS; ucx: "),
], indirect=["by_ucx"])  # fmt: skip
@pytest.mark.feature(103, "by UCX")
@pytest.mark.feature(106, "a device by its name")
def test_what_is_large_has_a_connection_of_its_own_between_hosts(by_ucx, daemons, before, told):
    begin = PROLOGUE + "from monarch.config import configure\n" + before + "\n" + ATTACH
    run = daemons[0].run(FAR + """
print(user.explain.call_one(buffer).get())
print(user.read.call_one(buffer).get() == whole, user.every_other.call_one(buffer).get() == whole)
user.write.call_one(buffer).get()
print(owner.sum.call_one().get() == 3 * (SIZE // 8), user.streamed.call_one().get() >= 3)
hosts.shutdown().get()
""", daemons[1], begin=begin).ok()  # fmt: skip
    lines = [line for line in run.out.splitlines() if "UCX  " not in line]
    assert lines[0].startswith(told)
    assert lines[1:] == ["True True", "True True"]


@pytest.mark.parametrize("scheme", ["tcp"])
def test_who_wants_a_nic_or_nothing_is_told_that_there_is_none(far, daemons):
    configured = "from monarch.config import configure\nconfigure(rdma_allow_tcp_fallback=False)\n"
    daemons[0].run(FAR + """
from monarch.rdma import RDMAError, get_rdma_backend
assert get_rdma_backend() == "none"
try: user.read.call_one(buffer).get()
except ActorError as error: assert "rdma_allow_tcp_fallback is False, and there is no NIC" in str(error), error
else: raise AssertionError("it was read")
hosts.shutdown().get()
""", daemons[1], begin=PROLOGUE + configured + ATTACH).ok()  # fmt: skip


@pytest.mark.parametrize("scheme", ["tcp"])
@pytest.mark.parametrize("by_ucx", [False, True], indirect=True, ids=["tcp", "ucx"])
def test_an_owner_that_dies_while_its_bytes_are_on_the_way(by_ucx, daemons, request):
    way = request.node.callspec.id.split("-")
    configured = "from monarch.config import configure\nconfigure(rdma_encrypt=False)\n" if "ucx" in way else ""
    run = daemons[0].run(FAR + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
pid = owner.pid.call_one().get()
print(user.explain.call_one(buffer).get()[:3])
reading = user.read_for_ever.call_one(buffer)
beside = near.spawn("beside", User)
while beside.streamed.call_one().get() < 3:
    pass
killed = time.monotonic()
os.kill(pid, signal.SIGKILL)
try:
    reading.get()
except Exception as error:
    print("sig=9" in str(error) or error, time.monotonic() - killed < 10)
hosts.shutdown().get()
""", daemons[1], begin=PROLOGUE + configured + ATTACH).ok()  # fmt: skip
    assert run.out.splitlines() == ["ucx" if configured else "tcp", "True True"], run.err


FAKE_UCX = Path(__file__).parents[2] / "build/release/tests/native/libucp.so.0"


@pytest.fixture
def fake_ucx(far, monkeypatch, request):
    """A library in the place of UCX's, of which that does not work."""
    if not FAKE_UCX.exists():
        pytest.skip("not run: built without -DMONARCH_TESTS=ON")
    monkeypatch.setenv("MONARCH_RDMA_PATHS", "tcp,ucx")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE_UCX.parent))
    monkeypatch.setenv("FAKE_UCP", request.param)


@pytest.mark.parametrize("scheme", ["tcp"])
@pytest.mark.parametrize(
    ("fake_ucx", "within"), [("messages", 25), ("endpoint", 5), ("slow", 25)], indirect=["fake_ucx"]
)
def test_where_ucx_gets_nothing_through_what_follows_goes_without(fake_ucx, daemons, within):
    configured = "from monarch.config import configure\nconfigure(rdma_encrypt=False)\n"
    run = daemons[0].run(FAR + f"""
begun = time.monotonic()
print(user.read.call_one(buffer).get() == whole)
user.write.call_one(buffer).get()
print(time.monotonic() - begun < {within} or time.monotonic() - begun)
print(owner.sum.call_one().get() == 3 * (SIZE // 8))
deadline = time.monotonic() + 30
while "ucx: " not in (told := user.explain.call_one(buffer).get()) and time.monotonic() < deadline:
    user.read.call_one(buffer).get()
print(told)
hosts.shutdown().get()
""", daemons[1], begin=PROLOGUE + configured + ATTACH).ok()  # fmt: skip
    lines = run.out.splitlines()
    assert lines[:3] == ["True", "True", "True"], run.out
    assert lines[3].startswith("tcp (") and "; ucx: " in lines[3], run.out
