"""Inputs far from mean 0 and deviation 1 that make a run diverge: shown by the same steps with standardised ones, at
the line that makes them; a learning rate that is too high for standardised inputs, too, stays to blame."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

ROWS = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Houses(Dataset):
    def __init__(self):
        rng = np.random.RandomState(0)
        self.year = rng.randint(1930, 2020, 400)
        self.area = rng.uniform(20, 200, 400)

    def __len__(self):
        return 400

    def __getitem__(self, i):
        row = np.array([{year}, {area}], dtype=np.float32)
        price = self.area[i] / 100 + (self.year[i] - 1975) / 50
        return torch.from_numpy(row), torch.tensor([price], dtype=torch.float32)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr={rate})
    return dict(model=model, optimizer=optimizer, data=DataLoader(Houses(), batch_size=32, shuffle=True),
                loss_fn=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), max_steps=48)
"""
FAR = {"year": "self.year[i]", "area": "self.area[i]"}
NEAR = {"year": "(self.year[i] - 1975) / 26", "area": "(self.area[i] - 110) / 52"}
PICTURES = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ToDtype:  # torchvision's, as far as it goes
    def __init__(self, dtype, scale=False):
        self.dtype, self.scale = dtype, scale

    def __call__(self, picture):
        return picture.to(self.dtype) / (255 if self.scale else 1)


class Pictures(Dataset):
    def __init__(self, transform):
        rng = np.random.RandomState(0)
        self.labels = rng.randint(0, 2, 256)
        self.pictures = rng.randint(0, 200, (256, 1, 8, 8)) + 55 * self.labels[:, None, None, None]
        self.transform = transform

    def __len__(self):
        return 256

    def __getitem__(self, i):
        return self.transform(torch.from_numpy(self.pictures[i]).to(torch.uint8)), int(self.labels[i])


def build():
    torch.manual_seed(0)
    data = DataLoader(Pictures(
        ToDtype(torch.float32)
    ), batch_size=32)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return dict(model=model, optimizer=optimizer, data=data,
                loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), max_steps=40)
"""


def test_columns_that_were_never_standardised(tmp_path: Path) -> None:
    recipe = tmp_path / "train.py"
    recipe.write_text(ROWS.format(**FAR, rate=0.05))
    found = run_training(f"{recipe}:build", Config(snapshot_dir=str(tmp_path))).findings[0]
    assert found.code in ("ND601", "ND606")
    assert found.culprit.kind == "data"
    assert found.culprit.batch_path == "batch[0]"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(recipe, "row = np.array(")
    assert found.fixes[0].verified
    assert "standardise" in found.fixes[0].title


def test_a_rate_that_is_too_high_for_standardised_inputs_too(tmp_path: Path) -> None:
    recipe = tmp_path / "train.py"
    recipe.write_text(ROWS.format(**NEAR, rate=20.0))
    found = run_training(f"{recipe}:build", Config(snapshot_dir=str(tmp_path))).findings[0]
    assert found.code in ("ND601", "ND606")
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(recipe, "lr=20.0")


def test_a_transform_that_was_not_told_to_scale(tmp_path: Path) -> None:
    recipe = tmp_path / "train.py"
    recipe.write_text(PICTURES)
    found = run_training(f"{recipe}:build", Config(snapshot_dir=str(tmp_path))).findings[0]
    assert found.code in ("ND107", "ND601", "ND606")
    assert found.culprit.kind == "data"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(recipe, "        ToDtype(torch.float32)")


def test_standardised_inputs_are_not_told_of(tmp_path: Path) -> None:
    recipe = tmp_path / "train.py"
    recipe.write_text(ROWS.format(**NEAR, rate=0.05))
    assert run_training(f"{recipe}:build", Config(snapshot_dir=str(tmp_path))).findings == ()


TWICE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 4, (256,), generator=generator)
        self.pictures = 255 * torch.rand(256, 16, generator=generator)
        for number, label in enumerate(self.labels):
            self.pictures[number, label] += 200

    def __len__(self):
        return 256

    def __getitem__(self, number):
        picture = self.pictures[number] / 255
        picture = picture / {by}
        return picture, self.labels[number]


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return dict(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
                loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
                data=DataLoader(Pictures(), batch_size=32, shuffle=True), max_steps=64)
"""


def test_pictures_that_were_divided_twice(tmp_path: Path) -> None:
    recipe = tmp_path / "train.py"
    recipe.write_text(TWICE.format(by=255))
    found = run_training(f"{recipe}:build", Config(snapshot_dir=str(tmp_path))).findings[0]
    assert found.code == "ND107"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(recipe, "picture = picture / 255")
    assert found.fixes[0].verified
    recipe.write_text(TWICE.format(by=1))
    assert run_training(f"{recipe}:build", Config(snapshot_dir=str(tmp_path))).findings == ()
