"""A validation whose inputs are not prepared as the training's are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Pictures(Dataset):
    def __init__(self, size, mean, deviation):
        self.pictures = torch.rand(size, 1, 8, 8) ** 2
        self.labels = (self.pictures[:, 0, :4].mean((1, 2)) > 0.33).long()
        self.mean, self.deviation = mean, deviation

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return (self.pictures[index] - self.mean) / self.deviation, self.labels[index]


model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
training = DataLoader(Pictures(256, 0.33, 0.3), batch_size=32, shuffle=True)
validation = DataLoader(Pictures({size}, {mean}, {deviation}), batch_size=32)
for epoch in range(2):
    for pictures, labels in training:
        optimizer.zero_grad()
        F.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
    with torch.no_grad():
        for pictures, labels in validation:
            print(float(F.cross_entropy(model(pictures), labels)))
"""


@pytest.mark.parametrize(
    ("size", "mean", "deviation", "told"),
    [(64, 0.0, 1.0, True), (64, 0.33, 0.3, False), (64, 0.3, 0.35, False), (4, 0.0, 1.0, False)],
)
def test_the_scale_of_a_validation(
    tmp_path: Path, size: int, mean: float, deviation: float, told: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(size=size, mean=mean, deviation=deviation))
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.stdout == bare.stdout
    assert ("warning[ND135]" in done.stderr) == told
    if told:
        line = 1 + next(n for n, s in enumerate(SCRIPT.splitlines()) if s.startswith("validation"))
        assert f"--> train.py:{line}:" in done.stderr


def test_the_line_of_another_transform(tmp_path: Path) -> None:
    """The one argument by which the two data sets differ, and which is more than a constant."""
    changes = {
        "class Pictures": "class Scale:\n"
        "    def __init__(self, mean, deviation):\n"
        "        self.mean, self.deviation = mean, deviation\n\n"
        "    def __call__(self, x):\n"
        "        return (x - self.mean) / self.deviation\n\n\n"
        "class Pictures",
        "size, mean, deviation)": "training, transform)",
        "rand(size,": "rand(256 if training else 64,",
        "        self.mean, self.deviation = mean, deviation\n\n    def __len__": "        "
        "self.transform = transform\n\n    def __len__",
        "(self.pictures[index] - self.mean) / self.deviation": "self.transform("
        "self.pictures[index])",
        "training = DataLoader(Pictures(256, 0.33, 0.3)": "bright = Scale(0.33, 0.3)\n"
        "plain = Scale(0.0, 1.0)\ntraining = DataLoader(Pictures(True, bright)",
        "Pictures({size}, {mean}, {deviation})": "Pictures(False, plain)",
    }
    script = SCRIPT
    for old, new in changes.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    (tmp_path / "train.py").write_text(script)
    told = nanodoc("run", "train.py", cwd=tmp_path).stderr
    assert "warning[ND135]" in told
    assert f"--> train.py:{line_of(tmp_path / 'train.py', 'plain = ')}:" in told
