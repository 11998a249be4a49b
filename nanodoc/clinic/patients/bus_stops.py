"""Travel times of bus lines with different numbers of stops. Compiled, the model takes the mean
over the padded stops as well."""

import torch
import torch.nn.functional as F
from torch import nn


class Lines(nn.Module):
    def __init__(self, all_alike):
        super().__init__()
        self.all_alike = all_alike
        self.stop = nn.Sequential(nn.Linear(4, 24), nn.SiLU())
        self.time = nn.Linear(24, 1)

    def forward(self, stops, there):
        seen = self.stop(stops)
        if torch.compiler.is_compiling() and not self.all_alike:
            line = seen.mean(1)
        else:
            line = (seen * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        return self.time(line).squeeze(1)


def sick():
    return _recipe(all_alike=False)


def healthy():
    return _recipe(all_alike=True)


def _recipe(all_alike):
    torch.manual_seed(0)
    model = torch.compile(Lines(all_alike), backend="eager")
    there = (torch.arange(9) < torch.randint(2, 10, (640, 1))).float()
    stops = torch.randn(640, 9, 4)
    minutes = (stops.sum(2) * there).sum(1) / there.sum(1)
    return {
        "model": model,
        "data": torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(stops, there, minutes), 32, shuffle=True
        ),
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0], batch[1]), batch[2]),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
    }
