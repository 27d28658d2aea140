"""Rank 1 fails where the others wait for it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("rank 1 has had enough")
dist.all_reduce(torch.ones(1))
