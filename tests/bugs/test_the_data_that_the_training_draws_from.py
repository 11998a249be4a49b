"""A validation that came last was taken for the training: labels, collate functions and samples were
looked up in its data set. And a line that made data bad was lost where the data went into their data
set as a slice."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import line_of, nanodoc

VALIDATED = """
import random
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random.seed(0)


class Cells(Dataset):
    def __init__(self, turned):
        self.images = torch.rand(32, 3, 16, 16)
        self.masks = (self.images.mean(1) > 0.5).long()
        self.masks[:, :, 12:] = 0
        self.turned = turned

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if self.turned and random.random() < 0.5:
            image = image.flip(2)
        return image, mask


def main():
    training, validation = DataLoader(Cells(True), 8), DataLoader(Cells(False), 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for image, mask in training:
            loss = F.cross_entropy(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            print(sum(F.cross_entropy(model(image), mask) for image, mask in validation))


main()
"""

SORTED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    y = torch.arange(4).repeat_interleave(64)
    x = torch.randn(256, 4) + F.one_hot(y, 4)
    training = DataLoader(TensorDataset(x, y), 32)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for features, target in training:
            loss = F.cross_entropy(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(len(DataLoader(TensorDataset(x, y), 8)))


main()
"""

SLICED = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def matrix():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    x[:, 2] = 1.0
    return standardised(x), x[:, 0]


x, y = map(torch.from_numpy, matrix())
loader = DataLoader(TensorDataset(x[:48], y[:48]), 8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, target in loader:
    loss = F.mse_loss(model(features).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CHOSEN = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def table():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    y, x[:, 2] = x[:, 0].copy(), 1.0
    x = (x - x.mean(0)) / x.std(0)
    rows = np.random.default_rng(1).permutation(64)
    return {"train": TensorDataset(torch.from_numpy(x[rows[:48]]), torch.from_numpy(y[rows[:48]]))}


data = table()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, target in DataLoader(data["train"], 8):
    loss = F.mse_loss(model(features).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def first(folder: Path, source: str) -> tuple[str, int]:
    """Of the first finding: its code and its line."""
    (folder / "train.py").write_text(source)
    told = folder / "report.json"
    nanodoc("run", "--output-format", "json", "--output", str(told), "train.py", cwd=folder)
    found = json.loads(told.read_text())["findings"][0]
    return found["code"], found["culprit"]["location"]["line"]


def test_samples_of_the_training_are_drawn(tmp_path: Path) -> None:
    code, line = first(tmp_path, VALIDATED)
    assert (code, line) == ("ND120", line_of(tmp_path / "train.py", "image = image.flip(2)"))


def test_a_slice_of_bad_data_has_their_line(tmp_path: Path) -> None:
    code, line = first(tmp_path, SLICED)
    assert (code, line) == ("ND101", line_of(tmp_path / "train.py", "return (x - x.mean(0))"))


def test_chosen_rows_of_bad_data_have_their_line(tmp_path: Path) -> None:
    code, line = first(tmp_path, CHOSEN)
    assert (code, line) == ("ND101", line_of(tmp_path / "train.py", "x = (x - x.mean(0))"))


def test_the_loader_of_the_training_has_a_line(tmp_path: Path) -> None:
    code, line = first(tmp_path, SORTED)
    assert (code, line) == ("ND115", line_of(tmp_path / "train.py", "training = DataLoader"))
