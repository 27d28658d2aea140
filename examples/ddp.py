"""Distributed data parallel training on the processes of a mesh. Needs torch; gloo on the CPU will do.

Every rank has its share of the data and a replica of the model; DistributedDataParallel averages the gradients. The
script trains twice, with two learning rates, and compares the losses with those of one process that has all the data.

    python examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monarch.actor import Actor, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env

RANKS, STEPS, ROWS, FEATURES = 2, 60, 512, 8


def train(model: nn.Module, rate: float, rank: int = 0, world: int = 1) -> list[float]:
    """The mean loss of this rank's rows in each step."""
    random = torch.Generator().manual_seed(1)
    features = torch.randn(ROWS, FEATURES, generator=random)
    targets = features.sin().sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features[rank::world]), targets[rank::world])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))


class Trainer(Actor):
    @endpoint
    def train(self, rate: float) -> list[float]:
        dist.init_process_group("gloo")  # rank, size and where rank 0 is stand in the environment
        losses = train(DistributedDataParallel(new_model()), rate, dist.get_rank(), dist.get_world_size())
        dist.barrier()  # nobody leaves while others still talk to it
        dist.destroy_process_group()
        return losses


def main() -> None:
    with this_host().spawn_procs(per_host={"gpus": RANKS}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        for rate in (0.05, 0.2):
            setup_torch_elastic_env(procs)
            by_rank = trainers.train.call(rate).get().values()
            losses = [sum(step) / RANKS for step in zip(*by_rank)]
            alone = train(new_model(), rate)
            difference = max(abs(ours - theirs) for ours, theirs in zip(losses, alone))
            print(f"rate {rate}: loss {losses[0]:.4f}, after {STEPS} steps {losses[-1]:.4f}")
            print(f"largest difference to one process: {difference:.1e}")


if __name__ == "__main__":
    main()
