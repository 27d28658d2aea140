"""Two hosts of this machine, as a job of torchx: the script's arguments are where its logs go, and a port."""

import asyncio
import sys
from typing import Any

import torchx.specs

from monarch.actor import Actor, attach_to_workers, current_rank, endpoint  # noqa: F401 (the tests use the second)
from monarch.tools import commands
from monarch.tools.config import Config


class Speaker(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank


logs, port = sys.argv[1:]
worker = torchx.specs.Role(
    "workers",
    image="",
    entrypoint=sys.executable,
    args=["-m", "monarch", "worker", "--bind", f"tcp://127.0.1.${{replica_id}}:{port}"],
    num_replicas=2,
)
app = torchx.specs.AppDef("speakers", roles=[worker])
config = Config("local_cwd", {"log_dir": logs}, appdef=app)


def ready(handle: str | None) -> Any:
    assert handle is not None
    return asyncio.run(commands.server_ready(handle, check_interval=0.05, timeout=30))
