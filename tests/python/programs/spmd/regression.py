"""A small model on data that each rank has a share of: the losses are those of one process with all of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

STEPS, ROWS, FEATURES = 6, 24, 5
Wrapped = Callable[[torch.nn.Module], torch.nn.Module]


def train(wrap: Wrapped, rank: int, world: int) -> list[float]:
    """The loss over all data before each step. ``wrap`` makes the model one of a group, or leaves it alone."""
    random = torch.Generator().manual_seed(7)
    features = torch.rand(ROWS, FEATURES, generator=random, dtype=torch.float64)
    targets = features.square().sum(1, keepdim=True)
    torch.manual_seed(3)
    layers = torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    model = wrap(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(features[rank::world]) - targets[rank::world]).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if world > 1:
            dist.all_reduce(total)
        losses.append(total.item() / world)
    return losses
