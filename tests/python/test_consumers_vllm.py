"""How an inference engine runs its workers: from a process of its own, to which handles come in its environment.

The engine's worker class knows nothing of actors: an actor mixes it in, and one endpoint runs its methods by name.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from monarch.actor import Actor, HostMesh, context, current_rank, endpoint, this_host


class WorkerWrapper:
    """Stands for the engine's own class."""

    def __init__(self, rpc_rank: int = 0):
        self.rpc_rank = rpc_rank
        self.model: str | None = None

    def load_model(self, name: str) -> None:
        self.model = name

    def execute_model(self, tokens: list[int]) -> str | None:
        return f"{self.model}: {sum(tokens)}" if self.rpc_rank == 0 else None

    def update_environment_variables(self, variables: dict[str, str]) -> None:
        os.environ.update(variables)


class WorkerActor(WorkerWrapper, Actor):
    def __init__(self):
        super().__init__(rpc_rank=context().actor_instance.rank.rank)

    @endpoint
    def run(self, method: str | bytes, args: tuple, kwargs: dict) -> Any:
        if isinstance(method, bytes):
            return cloudpickle.loads(method)(self, *args, **kwargs)
        return getattr(self, method)(*args, **kwargs)

    @endpoint
    def ranks(self) -> tuple[int, int, dict[str, int]]:
        instance_rank = context().actor_instance.rank
        return instance_rank.rank, current_rank().rank, dict(instance_rank)


class Executor:
    """Spawns a worker per GPU and calls all of them."""

    def __init__(self, hosts: HostMesh, gpus: int):
        self.procs = hosts.spawn_procs(per_host={"gpus": gpus}, name="vllm_workers")
        self.workers = self.procs.spawn("workers", WorkerActor)

    def collective_rpc(self, method: Any, timeout: float | None = None, args: tuple = (), **kwargs: Any) -> list[Any]:
        name = method if isinstance(method, str) else cloudpickle.dumps(method)
        answers = self.workers.run.call(name, args, kwargs).get(timeout=timeout)
        return [value for _, value in sorted(answers.items(), key=lambda item: item[0].rank)]

    def shutdown(self) -> None:
        self.procs.stop().get()


@pytest.mark.feature(10, 26, 36)
def test_workers_run_methods_of_a_class_that_knows_nothing_of_actors():
    executor = Executor(this_host(), 2)
    executor.collective_rpc("update_environment_variables", args=({"VLLM_STAND_IN": "1"},))
    executor.collective_rpc("load_model", timeout=20, args=("tiny",))
    assert executor.collective_rpc("execute_model", timeout=20, tokens=[1, 2, 3]) == ["tiny: 6", None]
    assert executor.collective_rpc(lambda worker, factor: worker.rpc_rank * factor, args=(10,)) == [0, 10]
    assert executor.collective_rpc(lambda worker: os.environ["VLLM_STAND_IN"]) == ["1", "1"]
    executor.shutdown()


@pytest.mark.feature(36)
def test_the_rank_of_the_instance_does_not_depend_on_the_slice_that_is_called(procs):
    workers = procs.spawn("workers", WorkerActor)
    assert workers.slice(gpus=1).ranks.call_one().get() == (1, 0, {"gpus": 1})
    assert [value for _, value in workers.ranks.call().get().items()] == [(0, 0, {"gpus": 0}), (1, 1, {"gpus": 1})]


@pytest.mark.feature(22)
def test_a_time_out_of_get_loses_nothing(procs):
    workers = procs.slice(gpus=0).spawn("workers", WorkerActor)
    answer = workers.run.call_one("execute_model", ([1],), {})
    blocked = workers.run.call_one(cloudpickle.dumps(lambda worker: open(fifo).read()), (), {})
    assert answer.get(timeout=20) == "None: 1"
    with pytest.raises(TimeoutError):
        blocked.get(timeout=0.01)
    with open(fifo, "w") as pipe:
        pipe.write("go")
    assert blocked.get(timeout=20) == "go"


fifo = ""


@pytest.fixture(autouse=True)
def a_fifo(tmp_path):
    global fifo
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)


ENGINE = """
import base64, os, cloudpickle
from test_consumers_vllm import Executor

hosts = cloudpickle.loads(base64.b64decode(os.environ["HOSTS"]))
store = cloudpickle.loads(base64.b64decode(os.environ["STORE"]))
executor = Executor(hosts, 2)
executor.collective_rpc("load_model", args=("tiny",))
store.run.call_one("load_model", (executor.collective_rpc("execute_model", args=([4, 5],))[0],), {}).get(timeout=20)
executor.shutdown()
"""  # fmt: skip


@pytest.mark.feature(61)
def test_an_engine_in_a_process_of_its_own_gets_handles_by_environment(procs):
    """The engine spawns on the host that it was given, and calls an actor of the program that started it."""
    store = procs.slice(gpus=0).spawn("store", WorkerActor)

    def text(handle: Any) -> str:
        return base64.b64encode(cloudpickle.dumps(handle)).decode()

    env = {**os.environ, "HOSTS": text(this_host()), "STORE": text(store)}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE], capture_output=True, text=True, timeout=60, env=env, cwd=Path(__file__).parent
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert store.run.call_one("execute_model", ([1],), {}).get() == "tiny: 9: 1"


@pytest.mark.feature(39)
def test_the_engine_chooses_a_transport_before_anything_else():
    program = """
from monarch.actor import enable_transport, this_host
from test_consumers_vllm import Executor

enable_transport("tcp")
executor = Executor(this_host(), 1)
executor.collective_rpc("load_model", args=("tiny",))
executor.shutdown()
"""  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.feature(46)
def test_the_extent_of_hosts_tells_their_number():
    hosts = this_host()
    assert len(hosts) == 1 and list(hosts.extent) == []
