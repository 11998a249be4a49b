"""A teacher that was trained first keeps its last gradients: they were taken for the student's
training, and its parameters for neglected ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import nanodoc

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = (x[:, 0] > 0).long()
teacher = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
student = nn.Linear(6, 2)


def train_teacher():
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for rows in torch.arange(128).repeat(4).split(16):
        optimizer.zero_grad()
        F.cross_entropy(teacher(x[rows]), y[rows]).backward()
        optimizer.step()


def train_student():
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for rows in torch.arange(128).repeat(4).split(16):
        optimizer.zero_grad()
        with torch.{switch}():
            soft = teacher(x[rows]).softmax(1)
        F.cross_entropy(student(x[rows]), soft).backward()
        optimizer.step()


train_teacher()
train_student()
"""


@pytest.mark.parametrize(("switch", "neglected"), [("no_grad", False), ("enable_grad", True)])
def test_only_new_gradients_count(tmp_path: Path, switch: str, neglected: bool) -> None:
    (tmp_path / "train.py").write_text(SOURCE.replace("{switch}", switch))
    told = tmp_path / "report.json"
    nanodoc("run", "--output-format", "json", "--output", str(told), "train.py", cwd=tmp_path)
    codes = [found["code"] for found in json.loads(told.read_text())["findings"]]
    assert ("ND506" in codes) == neglected
