"""A classifier whose learning rate falls where its accuracy stands still."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


def recipe(**options):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = ReduceLROnPlateau(optimizer, patience=1, factor=0.5, **options)
    done = {"steps": 0}

    def train_step(model, batch, optimizer, scaler=None):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        done["steps"] += 1
        if done["steps"] % 8 == 0:
            with torch.no_grad():
                seen, wanted = x.to(loss.device), y.to(loss.device)
                accuracy = (model(seen).argmax(1) == wanted).float().mean().item()
            scheduler.step(accuracy)
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": optimizer,
        "max_steps": 48,
    }


def sick():
    return recipe()


def healthy():
    return recipe(mode="max")
