"""Torch tensors in messages (`make test-torch`; skipped where there is no torch)."""

import pickle

import pytest

torch = pytest.importorskip("torch")

import monarch  # noqa: E402
from monarch._calls import pickling  # noqa: E402
from monarch.actor import Actor, Channel, endpoint, this_host  # noqa: E402


class Holder(Actor):
    @endpoint
    def describe(self, tensor):
        return type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def add_to_first(self, pair):
        pair[0].add_(1)
        return pair[1].tolist()

    @endpoint
    def keep(self, tensor):
        self.tensor = tensor

    @endpoint
    def kept(self):
        return self.tensor

    @endpoint
    def send(self, port, count):
        for i in range(count):
            port.send(torch.full((1000,), i))


@pytest.fixture(scope="module")
def holder():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    yield procs.spawn("holder", Holder)
    procs.stop().get()


TENSORS = {
    "float": lambda: torch.arange(12.0).reshape(3, 4),
    "transposed": lambda: torch.arange(12).reshape(3, 4).t(),
    "strided": lambda: torch.arange(20)[3::4],
    "expanded": lambda: torch.ones(1, 3).expand(5, 3),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "bfloat16": lambda: torch.ones(4, dtype=torch.bfloat16),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j]),
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "large": lambda: torch.arange(1 << 20),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
}


@pytest.mark.feature(75, "tensors of the CPU")
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was(holder, name):
    sent = TENSORS[name]()
    back = holder.slice(gpus=0).echo.call_one(sent).get()
    assert type(back) is type(sent) and back.dtype == sent.dtype and back.requires_grad == sent.requires_grad
    if sent.layout is torch.strided:
        assert back.stride() == sent.stride()
    assert torch.equal(back.to_dense(), sent.to_dense())


@pytest.mark.feature(75, "tensors of GPUs land on the CPU")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_of_a_gpu_lands_on_the_cpu(holder):
    sent = torch.arange(12, device="cuda")
    back = holder.slice(gpus=0).echo.call_one(sent).get()
    assert back.device.type == "cpu" and torch.equal(back, sent.cpu())


@pytest.mark.feature(75, "shared memory stays shared")
def test_tensors_of_one_message_share_memory_as_before(holder):
    base = torch.zeros(4)
    assert holder.slice(gpus=0).add_to_first.call_one((base, base[1:])).get() == [1.0] * 3
    assert base.tolist() == [0.0] * 4  # the sender's own is another one


@pytest.mark.feature(75, "large ones are not copied")
def test_the_memory_goes_beside_the_pickle_once():
    base = torch.arange(1 << 16)
    body, buffers = pickling.dumps({"a": base, "views": [base[10:], base.reshape(256, 256)]})
    assert len(body) < 2000 and [len(buffer) for buffer in buffers] == [base.nbytes]
    back = pickle.loads(body, buffers=[bytearray(buffer) for buffer in buffers])
    back["views"][1][0, 0] = 99
    assert back["a"][0] == 99


@pytest.mark.feature(75)
def test_a_message_is_a_snapshot_and_what_arrives_is_writable(holder):
    one = holder.slice(gpus=0)
    tensor = torch.zeros(1 << 18)
    kept = one.keep.call_one(tensor)
    tensor.fill_(7)
    kept.get()
    back = one.kept.call_one().get()
    assert back.sum() == 0
    back += 1
    assert one.kept.call_one().get().sum() == 0


@pytest.mark.feature(75)
def test_each_member_of_a_mesh_has_its_own(holder):
    answers = holder.echo.call(torch.zeros(1000)).get().values()
    answers[0].add_(1)
    assert answers[1].sum() == 0


@pytest.mark.feature(75)
def test_modules_and_their_state(holder):
    model = torch.nn.Linear(8, 4)
    state = holder.slice(gpus=0).echo.call_one(model.state_dict()).get()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    back = holder.slice(gpus=1).echo.call_one(model).get()
    assert torch.equal(back(torch.ones(8)), model(torch.ones(8)))


@pytest.mark.feature(75)
def test_tensors_through_a_port(holder):
    port, receiver = Channel.open()
    holder.slice(gpus=0).send.call_one(port, 3).get()
    assert [receiver.recv().get()[0].item() for _ in range(3)] == [0, 1, 2]


@pytest.mark.feature(75)
def test_nothing_imports_torch_by_itself(holder):
    import subprocess
    import sys

    code = (
        "import sys, monarch.actor\n"
        "from monarch.actor import this_host\n"
        "this_host().spawn_procs().initialized.get()\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# ---- Frozen tensors ----


def test_a_frozen_tensor_is_not_copied(holder):
    made = monarch.empty((1 << 10, 1 << 8), torch.float32)
    made.fill_(3)
    frozen = monarch.freeze(made)
    first = holder.slice(gpus=0)
    assert frozen.data_ptr() == made.data_ptr()
    for sent in (frozen, frozen.t(), frozen[::2, 1:]):
        back = first.echo.call_one([sent]).get(timeout=30)[0]
        assert back.data_ptr() == sent.data_ptr() and back.stride() == sent.stride() and torch.equal(back, sent)


def test_any_dense_tensor_is_copied_once_and_frozen(holder):
    tensor = torch.arange(1 << 18).reshape(-1, 4).t()
    frozen = monarch.freeze(tensor)
    assert torch.equal(tensor, frozen) and monarch.freeze(frozen) is frozen
    assert holder.slice(gpus=0).echo.call_one(frozen).get(timeout=30).data_ptr() == frozen.data_ptr()
    part = monarch.freeze(frozen[1])
    assert part.data_ptr() == frozen[1].data_ptr()


def test_a_tensor_that_is_thawed_can_be_written(holder):
    tensor = monarch.freeze(torch.arange(1 << 18).reshape(1 << 9, -1))
    back = holder.slice(gpus=0).echo.call_one(tensor[1:]).get(timeout=30)
    for sent in (back, back.t(), back[::2, 1:]):
        mine = monarch.thaw(sent)
        assert torch.equal(mine, sent) and mine.stride() == sent.stride() and mine.data_ptr() != sent.data_ptr()
        mine[0, 0] = -1
        assert mine[0, 0] == -1 and sent[0, 0] >= 0 and torch.equal(mine[1:], sent[1:])
    mine = monarch.thaw(tensor[0].expand(1000, -1))
    mine[0].fill_(-1)
    assert (mine[0] == -1).all() and torch.equal(mine[7], tensor[0])
    plain = torch.ones(3, dtype=torch.float64)
    mine = monarch.thaw(plain)
    mine.zero_()
    assert plain.tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=r"thaw\(tensor.detach\(\)\)"):
        monarch.thaw(torch.ones(3, requires_grad=True))


def test_tensors_that_cannot_be_frozen():
    for tensor, why in (
        (torch.ones(3, requires_grad=True), "requires a gradient"),
        (torch.nn.Parameter(torch.ones(3)), "plain tensors, and not 'Parameter'"),
        (torch.eye(3).to_sparse(), "plain dense tensors"),
        (torch.ones(3, device="meta"), "on meta"),
    ):
        with pytest.raises(TypeError, match=why):
            monarch.freeze(tensor)
    with pytest.raises(TypeError, match="a dtype of torch's"):
        monarch.empty(3, "f4", torch=True)
    assert monarch.empty((2, 3), torch=True).shape == (2, 3)
    assert monarch.empty(1 << 16, torch=True).dtype == torch.float32
    assert monarch.freeze(torch.ones(3)).tolist() == [1, 1, 1] and monarch.freeze(torch.empty(0)).numel() == 0
