"""Images with a varying number of boxes: a collate function that stacks them, and one that pads."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Street(Dataset):
    def __init__(self):
        maker = torch.Generator().manual_seed(0)
        self.images = torch.randn(24, 16, generator=maker)
        self.boxes = [torch.rand(1 + (i == 13), 5, generator=maker) for i in range(24)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "boxes": self.boxes[index]}


def padded(samples):
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "boxes": pad_sequence([sample["boxes"] for sample in samples], batch_first=True),
    }


def recipe(collate):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch["image"]), batch["boxes"].sum(1)),
        "data": DataLoader(Street(), batch_size=6, collate_fn=collate),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 8,
    }


def sick():
    return recipe(collate=None)


def healthy():
    return recipe(collate=padded)
