# Density of two rings with a RealNVP flow
import math

import torch
from torch import nn, optim

torch.manual_seed(21)


def rings(n):
    radius = torch.where(torch.rand(n) < 0.5, 1.0, 2.5) + 0.1 * torch.randn(n)
    angle = 2 * math.pi * torch.rand(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


class Coupling(nn.Module):
    """Half of the values is scaled and shifted by what the other half says."""

    def __init__(self, keep, hidden=48):
        super().__init__()
        self.register_buffer("mask", torch.tensor(keep))
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 4)
        nn.init.normal_(self.fc3.weight, std=0.01)
        nn.init.zeros_(self.fc3.bias)

    def forward(self, x):
        kept = x * self.mask
        h = torch.relu(self.fc1(kept))
        h = torch.relu(self.fc2(h))
        log_scale, shift = self.fc3(h).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale) * (1 - self.mask)
        z = kept + (1 - self.mask) * (x * log_scale.exp() + shift)
        return z, log_scale.sum(dim=1)


class Flow(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.couplings = nn.ModuleList(
            [Coupling([1.0, 0.0] if i % 2 else [0.0, 1.0]) for i in range(layers)]
        )

    def log_prob(self, x):
        total = torch.zeros(len(x))
        for coupling in self.couplings:
            x, log_det = coupling(x)
            total = total + log_det
        base = -0.5 * x.pow(2).sum(dim=1) - math.log(2 * math.pi)
        return base + total


train_x, test_x = rings(4000), rings(1000)
mean, std = train_x.mean(dim=0), train_x.std(dim=0)
train_x = (train_x - mean) / std
flow = Flow()
optimizer = optim.AdamW(flow.parameters(), lr=2e-3, weight_decay=1e-5)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
for epoch in range(8):
    total = 0.0
    for batch in train_x[torch.randperm(len(train_x))].split(100):
        loss = -flow.log_prob(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        total += loss.item()
    scheduler.step()
    print(f"epoch {epoch} nll {total / 40:.4f}")

with torch.no_grad():
    print(f"held-out nll {-flow.log_prob((test_x - mean) / std).mean().item():.4f}")
