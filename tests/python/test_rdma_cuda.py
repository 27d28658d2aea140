"""Memory of CUDA devices as buffers: with a device where there is one, and with a driver that stands in for it."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hostd import ATTACH
from script_run import PROLOGUE, Run, program

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import BufferDropped, RDMAAction, RDMABuffer, RDMAError

LIBRARY = Path(__file__).parents[2] / "build/release/tests/native/libfake_cuda.so"
UCX = LIBRARY.parent / "devices/libucp.so.0"
DEVICES = program("rdma_cuda/devices.py")


# ---- With the driver that stands in ----


def run(text, **env):
    if not LIBRARY.exists():
        pytest.skip("not run: built without -DMONARCH_TESTS=ON")
    return Run(DEVICES + text, prologue="", env={"MONARCH_CUDA_LIBRARY": str(LIBRARY), **env})


def test_reads_and_writes_of_either_kind_of_memory():
    out = run("""
torch = fake_torch()
owner = this_host().spawn_procs().spawn("owner", Owner)
buffer = owner.buffer.call_one(SIZE).get()
print(buffer.explain())
here, there = bytearray(SIZE), torch.Tensor(SIZE)
buffer.read_into(here).get()
buffer.read_into(there).get()
print(here == WHOLE, there.seen == WHOLE)
there.seen[:] = WHOLE[::-1]
buffer.write_from(there).get()
print(owner.contents.call_one().get() == WHOLE[::-1])
buffer[7:].write_from(b"few").get()
print(owner.contents.call_one().get()[5:12] == WHOLE[::-1][5:7] + b"few" + WHOLE[::-1][10:12])
few = bytearray(10)
buffer[4:14].read_into(few).get()
print(few == owner.contents.call_one().get()[4:14])
mine = RDMABuffer(there)
print(mine.explain(), owner.read.call_one(mine).get() == (WHOLE[::-1], "cuda-ipc"))
with RDMABuffer(torch.Tensor(SIZE, 1)) as other:
    other.write_from(there).get()
    mine.read_into(here).get()
    print(here == WHOLE[::-1])
print(told(lambda: buffer[:8].fetch_add(1).get()))
buffer.drop().get()
for target in here, there:
    print(told(lambda: buffer.read_into(target).get()))
""").ok().out.splitlines()  # fmt: skip
    assert out[:8] == ["cuda-ipc", "True True", "True", "True", "True", "local True", "True"] + out[7:8]
    assert "atomic operations are for memory of the host, and this is on a CUDA device" in out[7]
    assert all(line.startswith("BufferDropped: ") for line in out[8:]) and len(out) == 10


def test_kernels_of_the_stream_are_waited_for_before_each_use():
    out = run("""
torch = fake_torch()
owner = this_host().spawn_procs().spawn("owner", Owner)
buffer = owner.buffer.call_one(SIZE).get()
there, here = torch.Tensor(SIZE), bytearray(SIZE)
def count(do):
    before = torch.synchronized
    do()
    return torch.synchronized - before
print(count(lambda: RDMABuffer(there)), count(lambda: buffer.read_into(there).get()))
print(count(lambda: buffer.write_from(there).get()), count(lambda: buffer.read_into(here).get()))
action = RDMAAction().read_remote(there, buffer[:100]).write_remote(buffer[100:], here[100:]).fence()
print(count(lambda: action.submit().get()), count(lambda: action.submit().get()))
""").ok().out.splitlines()  # fmt: skip
    assert out == ["1 1", "1 0", "1 1"]


@pytest.mark.parametrize(("paths", "told"), [
    ("", "link (shm and cma: it is memory of a device; cuda-ipc: MONARCH_RDMA_PATHS leaves it out)"),
    ("cuda-ipc", "cuda-ipc"),
])  # fmt: skip
def test_ways_that_are_not_wanted(paths, told):
    out = run("""
owner = this_host().spawn_procs().spawn("owner", Owner)
buffer = owner.buffer.call_one(SIZE).get()
print(buffer.explain())
there = fake_torch().Tensor(SIZE)
buffer.read_into(there).get()
print(there.seen == WHOLE)
there.seen[:] = WHOLE[::-1]
buffer.write_from(there).get()
print(owner.contents.call_one().get() == WHOLE[::-1])
""", MONARCH_RDMA_PATHS=paths).ok().out.splitlines()  # fmt: skip
    assert out == [told, "True", "True"]


def test_memory_that_cannot_be_opened_goes_by_the_link():
    out = run("""
owner = this_host().spawn_procs().spawn("owner", Owner)
buffer = owner.buffer.call_one(SIZE, shareable=False).get()
print(buffer.explain())
here = bytearray(SIZE)
buffer.read_into(here).get()
print(here == WHOLE)
# Who reads has no driver.
buffer = owner.buffer.call_one(SIZE).get()
reader = this_host().spawn_procs(name="reader").spawn("reader", Owner, "/nowhere/libcuda.so.1")
found, how = reader.read.call_one(buffer).get()
print(found == WHOLE, how)
""").ok().out.splitlines()  # fmt: skip
    why = "link (shm and cma: it is memory of a device; cuda-ipc: "
    assert out[0].startswith(why + "cuIpcGetMemHandle: invalid argument") and out[1] == "True"
    assert out[2].startswith("True " + why + "there is no CUDA driver: /nowhere/libcuda.so.1: ")


def test_without_a_driver_it_says_why_not():
    out = run("""
torch = fake_torch()
there = torch.Tensor(10)
os.environ["MONARCH_CUDA_LIBRARY"] = "/nowhere/libcuda.so.1"
print(told(lambda: RDMABuffer(there)))
print(told(lambda: RDMABuffer(bytearray(10)).read_into(there)))
""").ok().out.splitlines()  # fmt: skip
    for line in out:
        assert line.startswith("ValueError: RDMABuffer only supports memory of the CPU here: there is no CUDA driver: ")
        assert "/nowhere/libcuda.so.1" in line and line.endswith("Got: a tensor on cuda:0; copy it with .cpu()")
    assert len(out) == 2


def test_what_is_no_memory_of_a_device_is_refused():
    out = run("""
torch = fake_torch()
there = torch.Tensor(10)
there.at = 4096
print(told(lambda: RDMABuffer(there)))
there.device.type = "xpu"
print(told(lambda: RDMABuffer(there)))
""").ok().out.splitlines()  # fmt: skip
    assert "here: cuPointerGetAttribute: invalid argument (1). Got: " in out[0]
    assert "here: of devices it knows those of CUDA. Got: " in out[1]


def test_an_owner_that_dies():
    out = run("""
procs = this_host().spawn_procs()
owner = procs.spawn("owner", Owner)
buffer = owner.buffer.call_one(SIZE).get()
there = fake_torch().Tensor(SIZE)
buffer.read_into(there).get()
os.kill(owner.pid.call_one().get(), signal.SIGKILL)
print(told(lambda: owner.contents.call_one().get()).split(":")[0])
for target in there, bytearray(SIZE):
    for use in buffer.read_into, buffer.write_from:
        print(told(lambda: use(target).get()).split(":")[0])
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
""").done()  # fmt: skip
    assert out.out.splitlines() == ["SupervisionError"] * 5


@pytest.fixture
def with_ucx(monkeypatch):
    """As if hosts were on machines of their own, with a UCX for memory of devices."""
    if not UCX.exists():
        pytest.skip("not run: built without -DMONARCH_TESTS=ON")
    monkeypatch.setenv("MONARCH_RDMA_PATHS", "tcp,ucx")
    monkeypatch.setenv("MONARCH_CUDA_LIBRARY", str(LIBRARY))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(UCX.parent))


@pytest.mark.parametrize("scheme", ["tcp"])
@pytest.mark.feature(103, "by UCX")
def test_between_hosts_ucx_gets_memory_of_devices_as_it_is(with_ucx, daemons):
    configured = "from monarch.config import configure\nconfigure(rdma_encrypt=False)\n"
    out = daemons[0].run(DEVICES + f"""
SIZE = 9_000_001  # three messages
WHOLE = bytes(i % 251 for i in range(SIZE))

class There(Owner):
    def messages(self): return ctypes.CDLL({str(UCX)!r}).ucp_messages_of_devices()
    @endpoint
    def moved(self): return self.messages()
    @endpoint
    def use(self, buffer):
        import warnings
        warnings.simplefilter("ignore")  # without TLS
        there, here = fake_torch().Tensor(SIZE), bytearray(SIZE)
        buffer.read_into(there).get()
        whole, after_read = there.seen == WHOLE, self.messages()
        there.seen[:] = WHOLE[::-1]
        buffer.write_from(there).get()
        after_write = self.messages()
        buffer.read_into(here).get()
        return whole, after_read, after_write, here == WHOLE[::-1], self.messages(), buffer.explain().split(" ")[0]

owner = hosts.slice(hosts=0).spawn_procs(name="far").spawn("owner", There)
user = hosts.slice(hosts=1).spawn_procs(name="near").spawn("user", There)
buffer = owner.buffer.call_one(SIZE).get()
print(*user.use.call_one(buffer).get(), owner.moved.call_one().get())
hosts.shutdown().get()
""", daemons[1], begin=PROLOGUE + configured + ATTACH).ok().out.splitlines()  # fmt: skip
    assert out == ["True 3 6 True 6 ucx 9"]


# ---- With a device ----


@pytest.fixture(scope="module")
def torch():
    found = sys.modules.get("torch")
    if found is None:
        try:
            import torch as found
        except ImportError:
            pytest.skip("not run: no CUDA device")
    if not found.cuda.is_available():
        pytest.skip("not run: no CUDA device")
    return found


class OnDevice(Actor):
    @endpoint
    def buffer(self, kind):
        self.tensor = make(kind)
        return RDMABuffer(self.tensor)

    @endpoint
    def contents(self):
        return self.tensor.cpu()

    @endpoint
    def fill(self, value):
        self.tensor.fill_(value)
        sys.modules["torch"].cuda.synchronize()

    @endpoint
    def explain(self, buffer):
        return buffer.explain()

    @endpoint
    def pid(self):
        return os.getpid()


KINDS = ["float", "bfloat16", "transposed", "sliced", "one", "large"]


def make(kind):
    import torch

    with torch.device("cuda"):
        return {
            "float": lambda: torch.arange(12.0).reshape(3, 4),
            "bfloat16": lambda: torch.arange(1000, dtype=torch.bfloat16),
            "transposed": lambda: torch.arange(5000).reshape(50, 100).T,
            "sliced": lambda: torch.arange(5000).reshape(50, 100)[::3, 5:90:2],
            "one": lambda: torch.tensor(7.5),
            "large": lambda: torch.arange(1 << 24),
        }[kind]()


@pytest.fixture(scope="module")
def owner(torch):
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    yield procs.spawn("owner", OnDevice)
    procs.stop().get()


@pytest.mark.feature(103, "GPUs")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_on_a_device(torch, owner, kind):
    wanted = make(kind)
    buffer = owner.buffer.call_one(kind).get()
    if wanted.is_contiguous():
        assert buffer.explain() == "cuda-ipc" or "expandable" in buffer.explain()
    on_device, on_host = torch.zeros_like(wanted), torch.zeros_like(wanted, device="cpu")
    buffer.read_into(on_device).get()
    buffer.read_into(on_host).get()
    assert torch.equal(on_device, wanted) and torch.equal(on_host, wanted.cpu())
    assert torch.equal(buffer.read().get(), wanted.cpu())
    for source in (wanted + 1, (wanted + 2).cpu()):
        buffer.write_from(source).get()
        assert torch.equal(owner.contents.call_one().get(), source.cpu())
    buffer.drop().get()
    with pytest.raises(BufferDropped):
        buffer.read_into(on_device).get()


@pytest.mark.feature(103, "GPUs")
def test_kernels_that_are_pending_come_first(torch, owner):
    buffer = owner.buffer.call_one("large").get()
    mine = torch.zeros(1 << 24, dtype=torch.int64, device="cuda")
    for round in range(5):
        for _ in range(20):
            mine.add_(1)
        buffer.write_from(mine).get()
        assert torch.equal(owner.contents.call_one().get(), torch.full_like(mine, 20 * (round + 1), device="cpu"))
    owner.fill.call_one(7).get()
    action = RDMAAction().read_remote(mine, buffer)
    mine.add_(1)
    action.submit().get()
    assert int(mine.min()) == int(mine.max()) == 7


def test_both_in_one_process(torch):
    one, other = (torch.full((1000,), value, device="cuda") for value in (1, 2))
    with RDMABuffer(one) as buffer:
        assert buffer.explain() == "local"
        buffer.read_into(other).get()
        assert torch.equal(one, other)
        with pytest.raises(RDMAError, match="atomic operations are for memory of the host"):
            buffer[:8].fetch_add(1).get()


def test_weights_on_a_device(torch):
    from monarch.weights import Source, Target

    mine = {"w": torch.zeros(1000, device="cuda")}
    with Source({"w": torch.arange(1000.0, device="cuda")}) as source:
        source.publish(0)
        Target(mine).pull([source.handle()])
    assert mine["w"].tolist() == list(range(1000))


def test_an_owner_on_a_device_that_dies(torch):
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    owner = procs.spawn("owner", OnDevice)
    buffer = owner.buffer.call_one("large").get()
    here = torch.zeros(1 << 24, dtype=torch.int64, device="cuda")
    buffer.read_into(here).get()
    os.kill(owner.pid.call_one().get(), signal.SIGKILL)
    with pytest.raises(Exception, match="killed|SIGKILL|ended|died"):
        owner.contents.call_one().get()
    with pytest.raises(Exception, match="killed|SIGKILL|ended|died"):
        buffer.read_into(here).get()
