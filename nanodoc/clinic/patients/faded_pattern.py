"""Pictures that are to take on the texture of one pattern, given by its Gram matrix."""

import torch
import torch.nn.functional as F
from torch import nn


def scaled_in_place(picture):
    return picture.div_(255) - 0.5


def scaled(picture):
    return picture / 255 - 0.5


def gram(picture):
    rows = picture.flatten(2)
    return rows @ rows.mT / rows.shape[2]


def recipe(scale):
    torch.manual_seed(0)
    pattern = (torch.rand(1, 3, 16, 16) > 0.5) * 255.0
    pictures = torch.rand(160, 3, 16, 16) - 0.5
    model = nn.Conv2d(3, 3, 3, padding=1)

    def train_step(model, batch, optimizer):
        nonlocal pattern
        if pattern.device != batch.device:
            pattern = pattern.to(batch.device)
        painted = model(batch)
        wanted = gram(scale(pattern)).expand(len(batch), -1, -1)
        loss = F.mse_loss(painted, batch) + F.mse_loss(gram(painted), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": torch.utils.data.DataLoader(pictures, batch_size=8),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 20,
    }


def sick():
    return recipe(scaled_in_place)


def healthy():
    return recipe(scaled)
