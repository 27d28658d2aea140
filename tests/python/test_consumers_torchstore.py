"""How a distributed store uses actors: volumes hold the values, a controller knows where, handles go through a store.

Values move straight between a client and the volume that holds them; the controller, known by name, only answers where.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from monarch.actor import Actor, ActorError, ProcMesh, current_rank, endpoint, get_or_spawn_controller

np = pytest.importorskip("numpy")


class Volume(Actor):
    """Values of one process, and an id by which its clients know it: computed where it is."""

    def __init__(self, id_func: Any):
        self.id = id_func()
        self.values: dict[str, Any] = {}

    @endpoint
    def get_id(self) -> tuple[str, int]:
        return self.id, current_rank().rank

    @endpoint
    def put(self, key: str, value: Any) -> None:
        self.values[key] = value

    @endpoint
    def get(self, key: str) -> Any:
        return self.values[key]

    @classmethod
    def launch(cls, procs: ProcMesh, id_func: Any) -> Volume:
        return procs.spawn("volumes", cls, id_func=id_func)


class Controller(Actor):
    def __init__(self):
        self.places: dict[str, str] = {}  # key to the id of a volume

    @endpoint
    def init(self, volumes: Volume) -> None:
        self.volumes = volumes
        self.ids = {volume_id: rank for _, (volume_id, rank) in volumes.get_id.call().get().items()}

    @endpoint
    def get_volumes(self) -> tuple[Volume, dict[str, int]]:
        return self.volumes, self.ids

    @endpoint
    def note(self, key: str, volume_id: str) -> None:
        self.places[key] = volume_id

    @endpoint
    def locate(self, key: str) -> str:
        if key not in self.places:
            raise KeyError(f"nobody has put {key}")
        return self.places[key]


class Client:
    def __init__(self, controller: Controller):
        self.controller = controller
        self.volumes, self.ids = controller.get_volumes.call_one().get()

    def volume(self, volume_id: str) -> Volume:
        return self.volumes.slice(gpus=self.ids[volume_id])

    def put(self, key: str, value: Any, volume_id: str) -> None:
        self.volume(volume_id).put.call_one(key, value).get()
        self.controller.note.call_one(key, volume_id).get()

    def get(self, key: str) -> Any:
        return self.volume(self.controller.locate.call_one(key).get()).get.call_one(key).get()


class User(Actor):
    """Puts and gets from another process, with the controller's handle as it came out of the store, as text."""

    def __init__(self, encoded: str):
        self.client = Client(cloudpickle.loads(base64.b64decode(encoded)))

    @endpoint
    def swap(self, key: str, new_key: str) -> float:
        value = self.client.get(key)
        value += 1  # what arrives is the receiver's own
        self.client.put(new_key, value, "volume 1")
        return float(value.sum())


def make_store(name: str, procs: ProcMesh) -> Controller:
    volumes = Volume.launch(procs, lambda: f"volume {current_rank()['gpus']}")
    controller = get_or_spawn_controller(name, Controller).get()
    controller.init.call_one(volumes).get()
    return controller


@pytest.mark.feature(21, 41, 61)
def test_values_go_to_volumes_and_the_controller_knows_where(procs):
    controller = make_store("store", procs)
    client = Client(controller)
    assert client.ids == {"volume 0": 0, "volume 1": 1}
    client.put("w", np.ones(1000), "volume 0")
    encoded = base64.b64encode(cloudpickle.dumps(controller)).decode()
    user = procs.slice(gpus=1).spawn("user", User, encoded)
    assert user.swap.call_one("w", "w2").get() == 2000.0
    assert client.get("w").sum() == 1000.0 and client.get("w2").sum() == 2000.0
    with pytest.raises(ActorError) as caught:
        client.get("nothing")
    assert isinstance(caught.value.exception, KeyError)
    assert get_or_spawn_controller("store", Controller).get() == controller


@pytest.mark.feature(8)
def test_keywords_of_spawn_are_those_of_the_constructor(procs):
    with pytest.raises(TypeError, match="id_func"):
        procs.spawn("volumes", Volume, id_function=str)


def run(program: str, *args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent)


@pytest.mark.feature(38)
def test_shutdown_context_at_the_end_of_a_store():
    program = """
from monarch.actor import shutdown_context, this_host
import test_consumers_torchstore as store

procs = this_host().spawn_procs(per_host={"gpus": 2})
client = store.Client(store.make_store("store", procs))
client.put("x", 1, "volume 1")
print(client.get("x"))
shutdown_context().get(timeout=20)
print("down")
"""  # fmt: skip
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\ndown\n", "")


@pytest.mark.feature(61)
def test_a_handle_out_of_the_store_works_in_a_process_of_another_program(procs):
    controller = make_store("store for others", procs)
    Client(controller).put("x", 41, "volume 0")
    program = """
import base64, sys, cloudpickle
import test_consumers_torchstore as store

client = store.Client(cloudpickle.loads(base64.b64decode(sys.argv[1])))
client.put("y", client.get("x") + 1, "volume 1")
"""  # fmt: skip
    encoded = base64.b64encode(cloudpickle.dumps(controller)).decode()
    done = run(program, encoded)
    assert (done.returncode, done.stderr) == (0, "")
    assert Client(controller).get("y") == 42


def test_the_context_variable_that_stores_read():
    from monarch._src.actor.actor_mesh import _context
    from monarch.actor import context

    assert _context.get(None) is None or _context.get(None).actor_instance is context().actor_instance
