"""A generator of points on a circle, and who tells them from those it should make."""

import torch
from torch import nn

REAL, FAKE = 1.0, 0.0


def recipe(wanted):
    torch.manual_seed(0)
    forger = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    expert = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    model = nn.ModuleDict({"forger": forger, "expert": expert})
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in (expert, forger)]
    criterion = nn.BCEWithLogitsLoss()

    def train_step(model, batch):
        real = torch.stack([batch.cos(), batch.sin()], 1)
        fake = model["forger"](torch.randn(len(batch), 4, device=batch.device))
        label = torch.ones(len(batch), 1, device=batch.device)
        optimizers[0].zero_grad()
        loss = criterion(model["expert"](real), REAL * label)
        loss = loss + criterion(model["expert"](fake.detach()), FAKE * label)
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss_of_forger = criterion(model["expert"](fake), wanted * label)
        loss_of_forger.backward()
        optimizers[1].step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(torch.rand(40, 32) * 6.28),
        "optimizer": optimizers,
    }


def sick():
    return recipe(FAKE)


def healthy():
    return recipe(REAL)
