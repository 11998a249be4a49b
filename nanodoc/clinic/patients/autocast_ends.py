"""An autocast context that ends before the model is called, and a stem whose output comes near the
end of float16."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(6, 24), nn.LayerNorm(24), nn.Linear(24, 3)
        with torch.no_grad():
            self.stem.weight.mul_(gain)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.stem(x))))


def recipe(dtype, inside=True, gain=1.0):
    torch.manual_seed(0)
    model = Net(gain)
    x = torch.randn(48, 6)
    y = x[:, :3].argmax(1)

    def train_step(model, batch, optimizer, scaler=None):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            noisy = batch[0] + 0.01
            if inside:
                scores = model(noisy)
        if not inside:
            scores = model(noisy)
        loss = F.cross_entropy(scores.float(), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(16), y.split(16), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 12,
    }


def sick_outside():
    return recipe(torch.bfloat16, inside=False)


def healthy_outside():
    return recipe(torch.bfloat16)


def sick_near_the_end():
    return recipe(torch.float16, gain=2.5e4)


def healthy_near_the_end():
    return recipe(torch.float16)
