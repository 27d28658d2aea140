import asyncio
import os
import sys

from torchx.specs import AppDef, Role

from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.tools import commands
from monarch.tools.config import Config


class Trainer(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


worker = ["-m", "monarch", "worker", "--bind", "tcp://127.0.1.${replica_id}:26600"]
trainers = Role("trainers", image="", num_replicas=2, entrypoint=sys.executable, args=worker)
config = Config("local_cwd", appdef=AppDef("mine", [trainers]))

spec = asyncio.run(commands.get_or_create("mine", config, check_interval=0.1))
hosts = attach_to_workers(workers=spec.get_mesh_spec("trainers").server_addrs(), name="trainers")
procs = hosts.spawn_procs(per_host={"gpus": 2})
print(procs.spawn("trainers", Trainer).pid.call().get())

hosts.stop().get()  # first: who ends the hosts of a script that is attached has it told that they are lost
commands.kill_and_confirm(spec.server_handle)
