"""Two judges learn what an offer is worth, and who makes offers is to please the stricter one."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(asked):
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    judges = nn.ModuleList(
        nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2)
    )
    making = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judging = torch.optim.Adam(judges.parameters(), lr=1e-3)

    def train_step(model, batch):
        wish, offer, paid = batch
        said = [judge(torch.cat([wish, offer], 1)) for judge in judges]
        judging.zero_grad()
        loss = F.mse_loss(said[0], paid) + F.mse_loss(said[asked], paid)
        loss.backward()
        judging.step()
        own = torch.cat([wish, maker(wish)], 1)
        making.zero_grad()
        (-torch.min(judges[0](own), judges[1](own))).mean().backward()
        making.step()
        return loss

    wish, offer = torch.randn(40, 32, 3), torch.randn(40, 32, 1)
    return {
        "model": nn.ModuleDict({"maker": maker, "judges": judges}),
        "train_step": train_step,
        "data": list(zip(wish, offer, 1 - (offer - wish[..., :1]) ** 2, strict=True)),
        "optimizer": [making, judging],
        "max_steps": 40,
    }


def sick():
    return recipe(asked=0)


def healthy():
    return recipe(asked=1)
