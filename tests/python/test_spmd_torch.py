"""torch.distributed in the processes of a mesh (`make test-torch`; skipped where there is no torch)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host  # noqa: E402
from monarch.job.spmd import serve  # noqa: E402
from monarch.spmd import SPMDActor, setup_torch_elastic_env  # noqa: E402

PROGRAMS = Path(__file__).parent / "programs" / "spmd"
LIMIT_S = 110  # torch alone takes seconds to import


def one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does
    sys.path.insert(0, str(PROGRAMS))


class Trainer(Actor):
    """A rank: what it does with torch is what any program would do."""

    @endpoint
    def init(self) -> tuple[int, int]:
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()

    @endpoint
    def destroy(self) -> None:
        dist.barrier()
        dist.destroy_process_group()

    @endpoint
    def give_up(self) -> None:
        """The group has lost a rank: nobody waits for anybody."""
        dist.destroy_process_group()

    @endpoint
    def add_up(self, value: float) -> float:
        tensor = torch.tensor(value)
        dist.all_reduce(tensor)
        return tensor.item()

    @endpoint
    def ddp(self) -> list[float]:
        import regression
        from torch.nn.parallel import DistributedDataParallel

        return regression.train(DistributedDataParallel, dist.get_rank(), dist.get_world_size())

    @endpoint
    def fsdp(self) -> tuple[list[float], list[tuple[int, ...]]]:
        """The losses, and the shapes of the parameters that this rank kept."""
        import regression
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        kept = []

        def shard(model: torch.nn.Module) -> torch.nn.Module:
            fully_shard(model, mesh=mesh)
            kept.extend(tuple(parameter.to_local().shape) for parameter in model.parameters())
            return model

        return regression.train(shard, dist.get_rank(), dist.get_world_size()), kept

    @endpoint
    def master_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @endpoint
    def exit(self) -> None:
        os._exit(1)


@pytest.fixture(scope="module")
def two():
    mesh = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=one_thread)
    yield mesh
    mesh.stop().get(timeout=30)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """The losses of one process that has all the data."""
    code = "import json, regression; print(json.dumps(regression.train(lambda model: model, 0, 1)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAMS, capture_output=True, check=True, timeout=LIMIT_S)
    losses = json.loads(done.stdout)
    assert losses[-1] < losses[0] / 2
    return losses


def same(losses: list[float]) -> object:
    return pytest.approx(losses, rel=1e-12, abs=0)


@pytest.mark.feature(94, "a DDP program")
def test_ddp_has_the_losses_of_one_process_twice_in_one_script(two, expected):
    trainers = two.spawn("trainers", Trainer)
    for _ in range(2):
        setup_torch_elastic_env(two)
        assert trainers.init.call().get(timeout=LIMIT_S).values() == [(0, 2), (1, 2)]
        assert trainers.ddp.call().get(timeout=LIMIT_S).values() == [same(expected)] * 2
        trainers.destroy.call().get(timeout=LIMIT_S)


@pytest.mark.feature(94)
def test_fsdp_on_the_cpu_shards_the_parameters_and_has_the_losses_of_one_process(two, expected):
    trainers = two.spawn("trainers", Trainer)
    setup_torch_elastic_env(two)
    trainers.init.call().get(timeout=LIMIT_S)
    for losses, kept in trainers.fsdp.call().get(timeout=LIMIT_S).values():
        assert losses == same(expected)
        assert kept[0] == (4, 5)  # of 8 rows
    trainers.destroy.call().get(timeout=LIMIT_S)


@pytest.mark.feature(94)
def test_groups_of_slices_work_side_by_side():
    with this_host().spawn_procs(per_host={"groups": 2, "gpus": 2}, bootstrap=one_thread) as procs:
        trainers = procs.spawn("trainers", Trainer)
        for group in range(2):
            setup_torch_elastic_env(procs.slice(groups=group))
        assert trainers.init.call().get(timeout=LIMIT_S).values() == [(0, 2), (1, 2)] * 2
        sums = [trainers.slice(groups=group).add_up.call(10.0**group) for group in range(2)]
        assert [answer.get(timeout=LIMIT_S).values() for answer in sums] == [[2.0, 2.0], [20.0, 20.0]]
        trainers.destroy.call().get(timeout=LIMIT_S)


@pytest.mark.feature(94)
def test_a_group_without_the_rank_that_died_and_one_with_another_in_its_place():
    with this_host().spawn_procs(per_host={"gpus": 3}, bootstrap=one_thread) as procs:
        setup_torch_elastic_env(procs)
        trainers = procs.spawn("trainers", Trainer)
        trainers.init.call().get(timeout=LIMIT_S)
        with pytest.raises(SupervisionError):
            trainers.slice(gpus=2).exit.call_one().get(timeout=LIMIT_S)
        left, survivors = procs.slice(gpus=slice(0, 2)), trainers.slice(gpus=slice(0, 2))
        survivors.give_up.call().get(timeout=LIMIT_S)
        setup_torch_elastic_env(left)
        assert survivors.init.call().get(timeout=LIMIT_S).values() == [(0, 2), (1, 2)]
        assert survivors.add_up.call(1.0).get(timeout=LIMIT_S).values() == [2.0, 2.0]
    with this_host().spawn_procs(per_host={"gpus": 3}, bootstrap=one_thread) as procs:
        setup_torch_elastic_env(procs)
        trainers = procs.spawn("trainers", Trainer)
        trainers.init.call().get(timeout=LIMIT_S)
        assert trainers.add_up.call(1.0).get(timeout=LIMIT_S).values() == [3.0] * 3


@pytest.mark.feature(94)
def test_the_port_is_held_before_torch_has_it_and_after(two):
    trainers = two.spawn("trainers", Trainer)
    setup_torch_elastic_env(two)
    port = trainers.slice(gpus=0).master_port.call_one().get(timeout=LIMIT_S)
    for _ in range(2):
        assert not may_be_taken(port)
        trainers.init.call().get(timeout=LIMIT_S)
        assert not may_be_taken(port)
        trainers.destroy.call().get(timeout=LIMIT_S)
    assert not may_be_taken(port)


def may_be_taken(port: int) -> bool:
    with socket.socket() as taker:
        try:
            taker.bind(("", port))
        except OSError:
            return False
        return True


@pytest.mark.feature(94, "a DDP program")
def test_a_torchrun_script_as_it_stands_twice_on_the_same_processes(two, expected, tmp_path):
    run_by_torchrun(tmp_path / "torchrun.json")
    assert json.loads((tmp_path / "torchrun.json").read_text()) == same(expected)
    ranks = two.spawn("ranks", SPMDActor)
    for out, leave_open in (("first.json", ["--leave-open"]), ("second.json", [])):
        address, port = ranks.slice(gpus=0).get_host_port.call_one(None).get(timeout=LIMIT_S)
        arguments = [str(PROGRAMS / "train.py"), "--out", str(tmp_path / out), *leave_open]
        assert ranks.main.call(address, port, arguments).get(timeout=LIMIT_S).values() == [True, True]
        assert json.loads((tmp_path / out).read_text()) == same(expected)


def run_by_torchrun(out: Path) -> None:
    """Whether its processes end well is not asked: torch 2.13 now and then aborts there, when all is done."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, str(PROGRAMS / "train.py"), "--out", str(out)], check=False, timeout=LIMIT_S)


@pytest.mark.feature(94)
def test_nobody_waits_for_a_rank_whose_program_has_failed(two):
    ranks = two.spawn("ranks", SPMDActor)
    address, port = ranks.slice(gpus=0).get_host_port.call_one(None).get(timeout=LIMIT_S)
    answers = list(ranks.main.stream(address, port, [str(PROGRAMS / "fail.py")]))
    errors = [answer.exception(timeout=LIMIT_S) for answer in answers]
    assert all(isinstance(error, ActorError) for error in errors), errors  # and none is a TimeoutError of the wait
    assert sorted("rank 1 has had enough" in str(error) for error in errors) == [False, True], errors


# ---- Jobs ----


@pytest.mark.feature(94, "SPMDJob")
def test_a_torchrun_script_as_it_stands_twice_on_a_held_allocation(expected, tmp_path):
    out = tmp_path / "losses.json"
    job = serve(["torchrun", "--standalone", "--nproc-per-node=2", str(PROGRAMS / "train.py"), "--out", str(out)])
    for _ in range(2):
        job.run_spmd()
        assert json.loads(out.read_text()) == same(expected)
        out.unlink()
    job.kill()


@pytest.mark.feature(95)
def test_the_machine_of_a_run_of_torchrun_is_a_host(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    out = tmp_path / "ranks"
    out.mkdir()
    subprocess.run([*command, str(PROGRAMS / "hosts.py"), str(out)], check=False, timeout=LIMIT_S)
    assert {file.name: file.read_text() for file in out.iterdir()} == {"0": "[('0', 2), ('0', 2)]", "1": "None"}
