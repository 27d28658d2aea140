"""What published programs import and do: recipes, demonstrations of the system, and where documentation misleads."""

from __future__ import annotations

import importlib
import os
import time

import pytest
from script_run import ended

import monarch
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)

# ---- Imports ----

PRESENT = {
    "monarch.actor": [
        "Accumulator", "Actor", "ActorError", "as_endpoint", "Channel", "ChannelTransport", "concurrent_endpoint",
        "context", "current_actor_name", "current_rank", "current_size", "default_bootstrap_cmd", "enable_transport",
        "Endpoint", "endpoint", "Extent", "Future", "get_or_spawn_controller", "HostMesh", "hosts_from_config",
        "local_proc_mesh", "Point", "Port", "PortReceiver", "proc_mesh", "ProcMesh", "returns_future", "send",
        "shutdown_context", "this_host", "this_proc", "ValueMesh",
    ],
    "monarch.config": ["configure", "configured", "get_global_config", "get_runtime_config", "clear_runtime_config"],
    "monarch": ["configure", "configured", "Extent", "NDSlice", "Selection", "Shape"],
    "monarch.actor.concurrent": ["concurrent_endpoint"],
    "monarch._src.actor.host_mesh": ["HostMesh", "hosts_from_config", "this_host", "this_proc"],
    "monarch.job": [
        "hosts_from_config", "JobState", "JobTrait", "LocalJob", "MeshAdminConfig", "ProcessJob", "TelemetryConfig",
        "PortForwarder", "SlurmJob", "exec_command", "job_load", "job_loads", "load_current_job", "set_current_job",
        "shell",
    ],
    "monarch.job.spmd": ["SPMDJob", "StoreJob", "serve"],
    "monarch.job.kubernetes": ["ImageSpec", "KubeConfig", "KubernetesJob"],
    "monarch.spmd": ["SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"],
    "monarch.tools.network": ["AddrType", "get_ipaddr"],
    "monarch._src.spmd.host_mesh": ["host_mesh_from_store"],
    "monarch._src.actor.actor_mesh": ["Actor", "ActorMesh", "Channel", "Port", "PortReceiver", "context"],
    "monarch._src.actor.proc_mesh": ["ProcMesh", "get_or_spawn_controller"],
    "monarch._rust_bindings.monarch_hyperactor.supervision": ["SupervisionError"],
    "monarch._rust_bindings.monarch_hyperactor.channel": ["ChannelTransport"],
}  # fmt: skip
LATER = {
    "monarch.actor": [
        "debug_controller", "get_meter", "span", "traced",
    ],
    "monarch": ["fetch_shard", "inspect", "remote", "Stream"],
}  # fmt: skip


def names(table: dict[str, list[str]], *marks: pytest.MarkDecorator) -> list:
    return [pytest.param(module, name, marks=marks) for module, found in table.items() for name in found]


# "Not there" is said in two ways: there is no such module yet, or its name says that a later version has it.
NOT_YET = pytest.mark.xfail(strict=True, raises=(ImportError, NotImplementedError), reason="not there yet")


@pytest.mark.parametrize(("module", "name"), [*names(PRESENT), *names(LATER, NOT_YET)])
def test_what_programs_import_is_there(module, name):
    assert getattr(importlib.import_module(module), name) is not None


# ---- Recipes ----


class Rank(Actor):
    """Knows its whole mesh, once it has been told."""

    @endpoint
    def introduce(self, mesh: Rank) -> None:
        self.mesh = mesh
        self.place = current_rank()

    @endpoint
    def double(self, x: int) -> int:
        return 2 * x

    @concurrent_endpoint  # the calls go in a circle
    async def ask_neighbour(self) -> int:
        neighbour = (self.place.rank + 1) % len(self.mesh)
        return await self.mesh.flatten("rank").slice(rank=neighbour).double.call_one(self.place.rank)

    @endpoint
    def report(self, port: Port[tuple[int, int]]) -> None:
        for step in range(3):
            port.send((current_rank().rank, step))

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def exit(self) -> None:
        os._exit(1)


@pytest.mark.feature(11, 21, 44)
def test_recipe_the_first_rank_and_calls_between_ranks(procs):
    ranks = procs.spawn("ranks", Rank)
    ranks.introduce.call(ranks).get()
    assert ranks.flatten("rank").slice(rank=0).double.call_one(21).get() == 42
    assert [value for _, value in ranks.ask_neighbour.call().get()] == [0, 2]


@pytest.mark.feature(28)
def test_recipe_many_senders_to_one_port(procs):
    port, receiver = Channel.open()
    procs.spawn("ranks", Rank).report.broadcast(port)
    reports = [receiver.recv().get(timeout=20) for _ in range(6)]
    for rank in range(2):
        assert [step for sender, step in reports if sender == rank] == [0, 1, 2]


@pytest.mark.feature(64)
def test_recipe_try_again_on_new_processes():
    for attempt in range(2):
        procs = this_host().spawn_procs(per_host={"gpus": 2})
        ranks = procs.spawn("ranks", Rank)
        try:
            if attempt == 0:
                ranks.slice(gpus=1).exit.call_one().get(timeout=20)
            assert ranks.double.call(2).get(timeout=20).values() == [4, 4]
            break
        except SupervisionError:
            pass
        finally:
            procs.stop().get(timeout=20)
    assert attempt == 1


# ---- Programs for watching the system ----


class Sleeper(Actor):
    @endpoint
    def sleep(self, fifo: str) -> str:
        with open(fifo) as until_somebody_writes:
            return until_somebody_writes.read()


@pytest.mark.feature(52, 72)
def test_a_mesh_is_stopped_and_the_next_one_works(procs):
    first = procs.spawn("first", Rank)
    assert first.double.call(1).get(timeout=20).values() == [2, 2]
    first.stop("enough of it").get(timeout=20)
    with pytest.raises(SupervisionError, match="stopped: enough of it"):
        first.double.call(1).get(timeout=20)
    assert procs.spawn("second", Rank).double.call(2).get(timeout=20).values() == [4, 4]


@pytest.mark.feature(18)
def test_an_actor_sleeps_and_others_of_its_process_do_not(procs, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    asleep = procs.slice(gpus=0).spawn("sleeper", Sleeper).sleep.call_one(str(tmp_path / "fifo"))
    assert procs.spawn("ranks", Rank).double.call(1).get(timeout=20).values() == [2, 2]
    with pytest.raises(TimeoutError):
        asleep.get(timeout=0)
    (tmp_path / "fifo").write_text("good morning")
    assert asleep.get(timeout=20) == "good morning"


class Poisoned(Actor):
    def __init__(self):
        if current_rank()["gpus"] == 1:
            raise ValueError("bad from the start")

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


@pytest.mark.feature(68, "slices without the failed rank", "new slices with it fail", 70, "each rank for itself")
def test_a_poisoned_rank_spoils_calls_that_need_it_and_no_others(procs):
    poisoned = procs.spawn("poisoned", Poisoned)
    with pytest.raises(SupervisionError, match="bad from the start"):
        poisoned.rank.call().get(timeout=20)
    assert poisoned.slice(gpus=0).rank.call_one().get(timeout=20) == 0
    with pytest.raises(SupervisionError, match="bad from the start"):
        poisoned.slice(gpus=slice(1, 2)).rank.call().get(timeout=20)
    assert procs.spawn("healthy", Rank).double.call(1).get(timeout=20).values() == [2, 2]


# ---- Where documentation misleads ----


@pytest.mark.feature(26)
def test_trap_a_value_mesh_is_no_list(procs):
    answers = procs.spawn("ranks", Rank).double.call(1).get(timeout=20)
    with pytest.raises(TypeError):
        answers[0]
    assert answers.get(0) == answers.item(gpus=0) == 2
    assert not isinstance(answers, list) and answers != [2, 2]


@pytest.mark.feature(70)
def test_trap_initialized_of_actors_says_nothing_of_constructors(procs):
    assert procs.spawn("poisoned", Poisoned).initialized.get(timeout=20) is None


@pytest.mark.feature(52, 53)
def test_trap_a_stop_that_nobody_looks_at_stops_here():
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    ranks = procs.spawn("ranks", Rank)
    pid = ranks.pid.call_one().get(timeout=20)
    procs.stop()
    assert ended(pid, time.monotonic() + 20)
    with pytest.raises(SupervisionError, match="stopped"):
        ranks.double.call(1).get(timeout=20)


@pytest.mark.parametrize("name", ["ActorFuture", "timer", "builtins"])
def test_trap_names_that_only_documentation_has(name):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        getattr(monarch, name)


@pytest.mark.feature(46)
def test_this_proc_is_the_process_of_the_caller():
    assert this_proc().spawn("here", Rank).pid.call_one().get(timeout=20) == os.getpid()


@pytest.mark.feature(62)
def test_an_error_is_an_actor_error_and_no_value_error(procs):
    ranks = procs.slice(gpus=0).spawn("ranks", Rank)
    with pytest.raises(ActorError) as caught:
        ranks.ask_neighbour.call_one().get(timeout=20)  # nobody has introduced it
    assert isinstance(caught.value.exception, AttributeError) and not isinstance(caught.value, AttributeError)
