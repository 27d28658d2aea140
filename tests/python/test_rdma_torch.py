"""Torch tensors as buffers (`make test-torch`; skipped where there is no torch)."""

import pytest

torch = pytest.importorskip("torch")

import monarch  # noqa: E402
from monarch.actor import Actor, endpoint, this_host  # noqa: E402
from monarch.rdma import RDMAAction, RDMABuffer, torch_allocator  # noqa: E402


class Owner(Actor):
    @endpoint
    def buffer(self, tensor):
        self.tensor = tensor
        return RDMABuffer(self.tensor)

    @endpoint
    def model(self):
        torch.manual_seed(3)
        self.net = torch.nn.Linear(300, 200)
        return {name: RDMABuffer(parameter) for name, parameter in self.net.named_parameters()}

    @endpoint
    def contents(self):
        return self.tensor


@pytest.fixture(scope="module")
def owner():
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    yield procs.spawn("owner", Owner)
    procs.stop().get()


TENSORS = {
    "float": lambda: torch.arange(12.0).reshape(3, 4),
    "bfloat16": lambda: torch.arange(1000, dtype=torch.bfloat16),
    "transposed": lambda: torch.arange(5000).reshape(50, 100).T,
    "sliced": lambda: torch.arange(5000).reshape(50, 100)[::3, 5:90:2],
    "one": lambda: torch.tensor(7.5),
    "bool": lambda: torch.arange(100) % 3 == 0,
    "complex": lambda: torch.arange(64.0) * 1j,
    "large": lambda: torch.arange(1 << 20),
    "in shared memory": lambda: monarch.empty(1 << 18, torch=True).fill_(2),
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(300, 200)
        self.head = torch.nn.Linear(200, 4)
        self.register_buffer("table", torch.arange(20_000).reshape(100, 200))
        self.register_buffer("noise", torch.randn(300, 100, dtype=torch.float64))


class Modeler(Actor):
    @endpoint
    def model(self):
        with torch_allocator():
            torch.manual_seed(3)
            self.net = Net()
        self.net.head(self.net.body(torch.ones(2, 300))).sum().backward()
        return {name: RDMABuffer(tensor) for name, tensor in self.net.state_dict().items()}


def test_what_torch_makes_in_its_block_lies_in_memory_that_others_map():
    torch.manual_seed(3)
    plain = Net().state_dict()
    with this_host().spawn_procs() as procs:
        buffers = procs.spawn("modeler", Modeler).model.call_one().get()
        for name, buffer in buffers.items():
            assert buffer.explain().startswith("shm" if plain[name].nbytes >= 64 << 10 else "cma"), name
            assert torch.equal(buffer.read().get(), plain[name]), name


def test_the_block_of_the_allocator_changes_no_result():
    base = torch.arange(40_000.0)
    with torch_allocator():
        view, doubled, cast = base[100:], base * 2, base.to(torch.float64)
        view.add_(1)
        pair = torch.split(base, 20_000)
        like = torch.empty_strided((200, 200), (1, 200)).fill_(4)
        meta = torch.empty(100_000, device="meta")
        both = torch.sort(base, descending=True)
    assert view.data_ptr() == base[100:].data_ptr() and base[100] == 101 and base[0] == 0
    assert torch.equal(doubled, torch.arange(40_000.0) * 2) and cast.dtype is torch.float64
    assert pair[1].data_ptr() == base[20_000:].data_ptr() and like.stride() == (1, 200) and meta.device.type == "meta"
    assert both.indices[0] == 39_999
    with RDMABuffer(doubled) as inside, RDMABuffer(doubled + 0) as outside:
        frozen = monarch.freeze(doubled)
        assert frozen.data_ptr() == doubled.data_ptr() and inside.size() == outside.size()


def test_what_is_no_memory_says_what_to_do():
    for bad, told in (
        (torch.ones(3, dtype=torch.complex64).conj(), r"use \.resolve_conj\(\)"),
        (torch.ones(3, device="meta"), "a tensor on meta"),
        (torch.ones(3).to_sparse(), "only supports dense tensors"),
    ):
        with pytest.raises(ValueError, match=told):
            RDMABuffer(bad)


def test_weights_of_numpy_get_to_torch():
    import numpy

    from monarch.weights import Source, Target

    mine = {"w": torch.zeros(5), "n": torch.zeros(2, dtype=torch.int64)}
    with Source({"w": numpy.arange(5, dtype=numpy.float32), "n": numpy.arange(2)}) as source:
        source.publish(0)
        Target(mine).pull([source.handle()])
    assert mine["w"].tolist() == [0, 1, 2, 3, 4] and mine["n"].tolist() == [0, 1]


@pytest.mark.parametrize("kind", TENSORS)
def test_each_kind_of_tensor(owner, kind):
    tensor = TENSORS[kind]()
    buffer = owner.buffer.call_one(tensor).get()
    assert buffer.size() == tensor.numel() * tensor.element_size()
    read = buffer.read().get()
    assert read.dtype == tensor.dtype and torch.equal(read, tensor)
    target = torch.zeros_like(tensor)
    buffer.read_into(target).get()
    assert torch.equal(target, tensor)
    buffer.write_from(target.flip(0) if target.dim() else target).get()
    assert torch.equal(owner.contents.call_one().get(), tensor.flip(0) if tensor.dim() else tensor)
    mine = RDMABuffer(tensor)
    assert torch.equal(mine.read().get(), tensor)
    buffer.drop().get()


def test_parameters_of_a_model(owner):
    theirs = owner.model.call_one().get()
    net = torch.nn.Linear(300, 200)
    action = RDMAAction()
    for name, parameter in net.named_parameters():
        action.read_remote(parameter, theirs[name])
    action.submit().get()
    torch.manual_seed(3)
    same = torch.nn.Linear(300, 200)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), same.parameters()))
    assert net.weight.requires_grad


def test_the_form_of_the_first_versions(owner):
    tensor = torch.arange(10.0)
    buffer = RDMABuffer(tensor.view(torch.uint8).flatten())
    target = torch.zeros(10)
    buffer.read_into(target.view(torch.uint8).flatten()).get()
    assert torch.equal(target, tensor)


def test_tensors_that_have_no_such_memory():
    for bad in (torch.eye(3).to_sparse(), torch.empty(3, device="meta"), torch.arange(3.0).conj() * 1j):
        if bad.dtype.is_complex:
            bad = bad.conj()
        with pytest.raises(ValueError, match="^RDMABuffer only supports "):
            RDMABuffer(bad)
    with pytest.raises(ValueError, match=r"^Cannot create RDMABuffer with size 0\.$"):
        RDMABuffer(torch.empty(0, 3))
    with pytest.raises(ValueError, match="overlaps itself"):
        RDMABuffer(torch.zeros(1).expand(5))
    with pytest.raises(ValueError, match="destination local memory overlaps itself"):
        RDMABuffer(torch.zeros(5)).read_into(torch.zeros(1).expand(5))
