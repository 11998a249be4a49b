"""A forecast of the next hour from the 12 hours before it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Hours(Dataset):
    def __init__(self, late):
        generator = torch.Generator().manual_seed(0)
        hours = torch.arange(400.0)
        noise = torch.randn(400, generator=generator)
        self.wind = torch.sin(hours / 24 * 6.28) + 0.3 * noise.cumsum(0) / 10
        self.late = late

    def __len__(self):
        return 380

    def __getitem__(self, index):
        first = index + 1 if self.late else index
        return self.wind[first : first + 12], self.wind[index + 12]


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.hours = nn.GRU(1, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, window):
        return self.out(self.hours(window[:, :, None])[0][:, -1]).squeeze(1)


def recipe(late):
    torch.manual_seed(0)
    model = Forecast()
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": DataLoader(Hours(late), batch_size=20, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 30,
    }


def sick():
    return recipe(late=True)


def healthy():
    return recipe(late=False)
