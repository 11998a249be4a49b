"""The losses of a script with a GradScaler were told as the scaler made them, 65536 times too large
and twice as large whenever its scale grew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", growth_interval=4)
with open("losses", "w") as told:
    for step in range(12):
        x = torch.rand(32, 8)
        y = x.sum(1, keepdim=True)
        optimizer.zero_grad()
        losses = [(model(part) - target).abs().mean() for part, target in zip(x.split(16), y.split(16))]
        for loss in losses:
            scaler.scale(loss / 2).backward()
        scaler.step(optimizer)
        scaler.update()
        told.write(f"{sum(losses).item() / 4}\\n")
"""


def test_they_are_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    own = [float(line) for line in (tmp_path / "losses").read_text().splitlines()]
    history = (tmp_path / "nanodoc-out/history.jsonl").read_text().splitlines()
    told = [row["loss"] for row in map(json.loads, history) if "loss" in row]
    assert len(own) == 12
    assert told == pytest.approx(own, rel=1e-6)


ODD = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
with open("losses", "w") as told:
    for step in range(6):
        loss = (model(torch.rand(32, 8)) - 1).square().mean()
        decay = model.weight.square().sum()
        optimizer.zero_grad()
        if sys.argv[1] == "a list":
            sum(scaler.scale([loss, decay])).backward()
            loss = loss + decay
        elif sys.argv[1] == "one to log":
            scaler.scale(loss).backward()
            scaler.scale(loss.detach())
        else:
            scaler.scale(decay.detach())
            (loss * scaler.get_scale()).backward()
        scaler.step(optimizer)
        scaler.update()
        told.write(f"{loss.item()}\\n")
"""


@pytest.mark.parametrize("how", ["a list", "one to log", "by hand"])
def test_what_is_scaled_is_not_what_is_differentiated(how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ODD)
    done = nanodoc("run", "train.py", "--", how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    own = [float(line) for line in (tmp_path / "losses").read_text().splitlines()]
    history = (tmp_path / "nanodoc-out/history.jsonl").read_text().splitlines()
    told = [row["loss"] for row in map(json.loads, history) if "loss" in row]
    assert told == pytest.approx(own, rel=1e-6)
