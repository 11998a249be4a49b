"""Features taken under no_grad from an encoder that was meant to be fine-tuned; nothing fails."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self, tune):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.head = nn.Linear(24, 3)
        self.tune = tune

    @torch.no_grad()
    def features(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.head(self.encoder(x) if self.tune else self.features(x))


def recipe(tune):
    torch.manual_seed(0)
    x = torch.randn(96, 10)
    model = Tagger(tune)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16),
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick():
    return recipe(tune=False)


def healthy():
    return recipe(tune=True)
