"""A critic of pictures with a gradient penalty (WGAN-GP)."""

import torch
from torch import nn


def penalty(critic, pictures, by_sample):
    pictures = pictures.clone().requires_grad_(True)
    score = critic(pictures)
    gradient = torch.autograd.grad(score.sum(), pictures, create_graph=True)[0]
    if by_sample:
        gradient = gradient.flatten(1)
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def recipe(by_sample):
    torch.manual_seed(0)
    critic = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(512, 1)
    )
    painted = torch.rand(12, 16, 3, 8, 8)
    found = painted.flip(3) ** 2

    def loss_fn(critic, batch):
        real, made = batch
        share = torch.rand(len(real), 1, 1, 1, device=real.device)
        between = share * real + (1 - share) * made
        score = critic(made).mean() - critic(real).mean()
        return score + 10 * penalty(critic, between, by_sample)

    return {
        "model": critic,
        "loss_fn": loss_fn,
        "data": list(zip(found, painted, strict=True)),
        "optimizer": torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9)),
        "max_steps": 12,
    }


def sick():
    return recipe(by_sample=False)


def healthy():
    return recipe(by_sample=True)
