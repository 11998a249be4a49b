"""Denoising diffusion of points on two moons, with an average of the weights."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 50


def moons(n):
    t = math.pi * torch.rand(n)
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, t.cos(), 1 - t.cos())
    y = torch.where(upper, t.sin(), 0.5 - t.sin())
    points = torch.stack([x, y], dim=1) + 0.05 * torch.randn(n, 2)
    return (points - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5])


class TimeEmbedding(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("rates", torch.exp(-math.log(1000) * torch.arange(size // 2) / (size // 2)))

    def forward(self, t):
        angles = t[:, None].float() * self.rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = TimeEmbedding(width)
        self.input = nn.Linear(2, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 2)

    def forward(self, x, t):
        h = self.input(x) + self.time(t)
        for layer in self.blocks:
            h = h + F.silu(layer(h))
        return self.output(self.norm(h))


class Diffusion:
    def __init__(self):
        betas = torch.linspace(1e-3, 0.2, STEPS)
        self.alphas_bar = torch.cumprod(1 - betas, dim=0)

    def noised(self, x, noise, t):
        a = self.alphas_bar[t].unsqueeze(1)
        return a.sqrt() * x + (1 - a).sqrt() * noise

    def loss(self, model, x):
        t = torch.randint(0, STEPS, (len(x),))
        noise = torch.randn_like(x)
        return F.mse_loss(model(self.noised(x, noise, t), t), noise)


def update_average(average, model, decay=0.98):
    with torch.no_grad():
        for ours, theirs in zip(average.parameters(), model.parameters()):
            ours.lerp_(theirs, 1 - decay)


def train(points, iterations=900, batch_size=128):
    diffusion, model = Diffusion(), Denoiser()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for it in range(iterations):
        idx = torch.randint(0, len(points), (batch_size,))
        loss = diffusion.loss(model, points[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_average(average, model)
        if it % 300 == 0:
            print(f"{it:5d} {loss.item():.4f}")
    return diffusion, average


def evaluate(diffusion, model, points):
    with torch.no_grad():
        clean = Diffusion()
        rounds = []
        for _ in range(20):
            t = torch.randint(0, STEPS, (len(points),))
            noise = torch.randn_like(points)
            a = clean.alphas_bar[t].unsqueeze(1)
            predicted = model(a.sqrt() * points + (1 - a).sqrt() * noise, t)
            rounds.append(F.mse_loss(predicted, noise).item())
    return sum(rounds) / len(rounds)


if __name__ == "__main__":
    torch.manual_seed(3)
    diffusion, model = train(moons(4000))
    print("held-out error %.4f" % evaluate(diffusion, model, moons(1000)))
