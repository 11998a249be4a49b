"""Segmentation of fields, whose masks are made smaller with their images."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Fields(Dataset):
    def __init__(self, mode):
        generator = torch.Generator().manual_seed(0)
        kinds = 2.0 * torch.randint(0, 5, (32, 3, 3), generator=generator)
        self.masks = kinds.repeat_interleave(16, 1).repeat_interleave(16, 2)
        self.images = torch.rand(32, 3, 48, 48, generator=generator) + self.masks[:, None] / 8
        self.mode = mode

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, index):
        image, mask = self.images[index][None], self.masks[index][None, None]
        image = F.interpolate(image, size=28, mode="bilinear")
        mask = F.interpolate(mask, size=28, mode=self.mode)
        return image[0] - 0.5, mask[0, 0].long()


def recipe(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 9, 3, padding=1))
    return {
        "model": model,
        "data": DataLoader(Fields(mode), batch_size=8, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "criterion": nn.CrossEntropyLoss(),
        "max_steps": 12,
    }


def sick():
    return recipe(mode="bilinear")


def healthy():
    return recipe(mode="nearest")
