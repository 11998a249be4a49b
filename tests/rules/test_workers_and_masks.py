"""Random numbers that a loader's workers share, and masks that are resized."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training

WORKERS = """
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SHARED = np.random.RandomState(3)


class Data(Dataset):
    def __init__(self, way):
        self.way = way
        self.x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
        self.numpy = np.random.default_rng(0)
        self.python = random.Random(0)
        self.torch = torch.Generator().manual_seed(0)
        self.own, self.drawn = None, 0

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.x[index] + 0.1 * getattr(self, self.way)(index), index % 2

    def of_numpy(self, index):
        return float(self.numpy.normal())

    def of_python(self, index):
        return self.python.gauss(0, 1)

    def of_torch(self, index):
        return torch.randn((), generator=self.torch)

    def of_the_module(self, index):
        return float(SHARED.normal())

    def for_all(self, index):
        return float(np.random.normal())

    def by_index(self, index):
        return float(np.random.default_rng(index).normal())

    def nothing(self, index):
        return 0.0

    def made_when_asked(self, index):
        if self.own is None:
            self.own = np.random.default_rng(torch.initial_seed())
        return float(self.own.normal())

    def a_coin(self, index):
        return float(np.random.rand() < 0.5)

    def a_coin_of_its_own(self, index):
        return float(self.numpy.random() < 0.5)

    def by_turns(self, index):
        self.drawn += 1
        return float(self.drawn)


def same_seed(worker):
    np.random.seed(0)


def own_seed(worker):
    np.random.seed(torch.initial_seed() % 2**32)


def again(worker):
    data = torch.utils.data.get_worker_info().dataset
    data.numpy = np.random.default_rng(torch.initial_seed())


def recipe(way, workers=2, init=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    loader = DataLoader(Data(way), 8, num_workers=workers, worker_init_fn=init, **options)
    return {"model": model, "criterion": nn.CrossEntropyLoss(), "data": loader,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 6}
"""


def found(folder: Path, made: str, code: str, call: str) -> list[tuple[str, str]]:
    """(severity, the source of the line) of the findings of one rule."""
    file = folder / "data.py"
    file.write_text(f"{made}\n\ndef build():\n    return {call}\n")
    report = run_training(f"{file}:build", Config(select=(code,)))
    lines = file.read_text().splitlines()
    return [
        (f.severity, lines[f.culprit.location.line - 1].strip() if f.culprit.location else "")
        for f in report.findings
    ]


@pytest.mark.parametrize(
    ("call", "severity", "line"),
    [
        ('recipe("of_numpy")', "warning", "self.numpy = np.random.default_rng(0)"),
        ('recipe("of_python")', "warning", "self.python = random.Random(0)"),
        ('recipe("of_torch")', "warning", "self.torch = torch.Generator().manual_seed(0)"),
        ('recipe("of_the_module")', "warning", "SHARED = np.random.RandomState(3)"),
        ('recipe("for_all", init=same_seed)', "warning", "np.random.seed(0)"),
        ('recipe("a_coin_of_its_own")', "warning", "self.numpy = np.random.default_rng(0)"),
        ('recipe("of_numpy", 1)', "info", "self.numpy = np.random.default_rng(0)"),
    ],
)
def test_workers_that_draw_the_same(tmp_path: Path, call: str, severity: str, line: str) -> None:
    assert found(tmp_path, WORKERS, "ND127", call) == [(severity, line)]


@pytest.mark.parametrize(
    "call",
    [
        'recipe("for_all")',
        'recipe("for_all", init=own_seed)',
        'recipe("of_numpy", init=again)',
        'recipe("by_index")',
        'recipe("nothing")',
        'recipe("made_when_asked")',
        'recipe("a_coin")',
        'recipe("by_turns")',
        'recipe("of_numpy", 0)',
        'recipe("of_numpy", 1, persistent_workers=True)',
    ],
)
def test_workers_that_draw_their_own(tmp_path: Path, call: str) -> None:
    assert found(tmp_path, WORKERS, "ND127", call) == []


MASKS = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

G = torch.Generator().manual_seed(0)
MASKS = torch.zeros(16, 40, 40)
for mask in MASKS:
    for kind in (1.0, 3.0):
        y, x = (int(c) for c in torch.randint(0, 24, (2,), generator=G))
        mask[y : y + 16, x : x + 16] = kind
IMAGES = torch.rand(16, 1, 40, 40, generator=G) + MASKS[:, None]


def resize(picture, mode):
    return F.interpolate(picture[None], size=24, mode=mode)[0]


class Data(Dataset):
    def __init__(self, way):
        self.way = way

    def __len__(self):
        return 16

    def __getitem__(self, index):
        image = resize(IMAGES[index], "bilinear")
        return getattr(self, self.way)(image, MASKS[index][None])

    def bilinear(self, image, mask):
        mask = resize(mask, "bilinear")
        return image, mask[0].round().long()

    def antialiased(self, image, mask):
        mask = resize(mask, "area")
        return {"image": image, "mask": mask[0].round().long()}

    def nearest(self, image, mask):
        return image, resize(mask, "nearest")[0].long()

    def one_class_rounded(self, image, mask):
        mask = resize((mask == 1).float(), "bilinear")
        return image, (mask[0] > 0.5).long()

    def flat_pictures(self, image, mask):
        return resize(mask, "bilinear"), resize(mask, "nearest")[0].long()

    def shares_of_one_class(self, image, mask):
        mask = resize((mask == 1).float(), "bilinear")
        return image, mask[0]

    def thin_borders(self, image, mask):
        mask = resize(mask, "nearest")[0]
        edge = F.max_pool2d(mask[None], 3, 1, 1)[0] != mask
        return image, mask.masked_fill(edge, 2.0).long()


def recipe(way):
    torch.manual_seed(0)
    model = nn.Conv2d(1, 4, 3, padding=1)

    def loss_fn(model, batch):
        image, mask = batch.values() if isinstance(batch, dict) else batch
        if mask.is_floating_point():
            return F.binary_cross_entropy_with_logits(model(image)[:, 0], mask)
        return F.cross_entropy(model(image), mask)

    return {"model": model, "loss_fn": loss_fn, "data": DataLoader(Data(way), 4),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 6}
"""


@pytest.mark.parametrize("way", ["bilinear", "antialiased"])
def test_a_mask_that_is_interpolated(tmp_path: Path, way: str) -> None:
    [(severity, line)] = found(tmp_path, MASKS, "ND126", f'recipe("{way}")')
    assert severity == "warning"
    assert "interpolate(" in line


@pytest.mark.parametrize(
    "way", ["nearest", "one_class_rounded", "flat_pictures", "thin_borders", "shares_of_one_class"]
)
def test_masks_of_classes_alone(tmp_path: Path, way: str) -> None:
    assert found(tmp_path, MASKS, "ND126", f'recipe("{way}")') == []
