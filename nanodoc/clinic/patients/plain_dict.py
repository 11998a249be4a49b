"""One branch per modality, kept in a plain dict: the branches take part and never learn."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Fusion(nn.Module):
    def __init__(self, registered):
        super().__init__()
        branches = {"sound": nn.Linear(5, 8), "image": nn.Linear(7, 8)}
        if registered:
            self.branches = nn.ModuleDict(branches)
        else:
            self.branches = branches
        self.head = nn.Linear(8, 2)

    def forward(self, sound, image):
        return self.head(
            torch.relu(self.branches["sound"](sound)) + torch.relu(self.branches["image"](image))
        )


def loss_fn(model, batch):
    sound, image, label = batch
    return F.cross_entropy(model(sound, image), label)


def recipe(registered):
    torch.manual_seed(0)
    model = Fusion(registered)
    sound, image = torch.randn(64, 5), torch.randn(64, 7)
    data = TensorDataset(sound, image, (sound[:, 0] * image[:, 0] > 0).long())
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(data, batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick():
    return recipe(registered=False)


def healthy():
    return recipe(registered=True)
