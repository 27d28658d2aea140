"""As people write them for torchrun: all that it knows is in its environment and its arguments."""

import argparse
import json
from pathlib import Path

import regression
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--leave-open", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    losses = regression.train(DistributedDataParallel, dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(losses))
    dist.barrier()
    if not options.leave_open:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
