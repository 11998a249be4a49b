"""A variational autoencoder of striped pictures."""

import torch
import torch.nn.functional as F
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.Tanh())
        self.mu, self.logvar = nn.Linear(64, 4), nn.Linear(64, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 256))

    def forward(self, pictures):
        hidden = self.encoder(pictures)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        latent = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decoder(latent), mu, logvar


def recipe(reduction):
    torch.manual_seed(0)
    across = torch.linspace(0, 12, 16)
    phases = torch.rand(320, 1, 1) * 6
    pictures = torch.sin(across + phases).expand(320, 16, 16)

    def loss_fn(model, batch):
        output, mu, logvar = model(batch)
        error = F.mse_loss(output, batch.flatten(1), reduction=reduction)
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return error + kl

    model = Autoencoder()
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": torch.utils.data.DataLoader(pictures, batch_size=32, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 100,
    }


def sick():
    return recipe("mean")


def healthy():
    return recipe("sum")
