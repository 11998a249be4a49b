"""A quantiser that picks its code by argmax; its straight-through twin lets the gradient by."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Quantiser(nn.Module):
    def __init__(self, straight_through):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(6, 8)
        self.straight_through = straight_through

    def forward(self, x):
        scores = self.encoder(x)
        code = F.one_hot(torch.argmax(scores, dim=-1), 6).to(scores.dtype)
        if self.straight_through:
            soft = scores.softmax(-1)
            code = soft + (code - soft).detach()
        return self.decoder(code)


def recipe(straight_through):
    torch.manual_seed(0)
    model = Quantiser(straight_through)
    x = torch.randn(64, 8)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[0]),
        "data": DataLoader(TensorDataset(x), batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick():
    return recipe(straight_through=False)


def healthy():
    return recipe(straight_through=True)
