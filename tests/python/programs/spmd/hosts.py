"""For torchrun: rank 0 has two processes on the run's hosts say where they are. Each rank says what it has got."""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from monarch.actor import Actor, current_size, endpoint
from monarch.job.spmd import StoreJob


class Process(Actor):
    @endpoint
    def place(self) -> tuple[str, int]:
        return os.environ["RANK"], current_size()["gpus"]


def main() -> None:
    dist.init_process_group("gloo")
    job = StoreJob.from_store(dist.distributed_c10d._get_default_store(), name="hosts")
    found = None
    if job is not None:
        processes = job.state().hosts.spawn_procs({"gpus": 2}).spawn("process", Process)
        found = list(processes.place.call().get().values())
        job.kill()
    (Path(sys.argv[1]) / str(dist.get_rank())).write_text(str(found))
    dist.barrier()  # the hosts are there until everybody has come here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
