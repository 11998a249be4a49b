"""Segmentation of cells, with images that are mirrored at random."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cells(Dataset):
    def __init__(self, together):
        generator = torch.Generator().manual_seed(0)
        rows, columns = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
        self.masks = []
        for _ in range(48):
            y, x = (int(c) for c in torch.randint(5, 19, (2,), generator=generator))
            self.masks.append((((rows - y) ** 2 + (columns - x) ** 2) < 25).long())
        self.images = [mask + torch.rand(3, 24, 24, generator=generator) for mask in self.masks]
        self.together = together

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
            if self.together:
                mask = mask.flip(-1)
        return image - 0.5, mask


def recipe(together):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
    return {
        "model": model,
        "data": DataLoader(Cells(together), batch_size=8, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "criterion": nn.CrossEntropyLoss(),
        "max_steps": 12,
    }


def sick():
    return recipe(together=False)


def healthy():
    return recipe(together=True)
