"""An iteration that begins with the optimizer's step of the one before it. Of a script one step was
watched, its whole function, and the verdict was healthy though its loss was NaN; of a recipe the
gradients were looked at when the next iteration began, and its loss was told as 0."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import math
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how, sick = sys.argv[1:]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
x, y = torch.randn(1024, 8), torch.randn(1024, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
if sick != "no":
    x[611] = 0

def main():
    number = -1
    for epoch in range(2):
        for xb, yb in DataLoader(TensorDataset(x, y), 16, shuffle=True):
            number += 1
            if how == "clipped":
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            if how == "scaled" and net[0].weight.grad is not None:
                scaler.step(optimizer)
                scaler.update()
            elif how != "scaled" and (how != "parts" or number % 4 == 0):
                optimizer.step()
            if how != "parts" or number % 4 == 0:
                optimizer.zero_grad()
            if sick == "forward":
                xb = xb / xb.norm(dim=1, keepdim=True)
            out = net(xb)
            if sick == "backward":
                out = out + (net[0](xb) - net[0].bias).square().sum(1, keepdim=True).sqrt()
            loss = (out - yb).square().mean()
            if how == "left" and not math.isfinite(loss):
                sys.exit("the loss is not finite")
            (scaler.scale(loss) if how == "scaled" else loss).backward()
    print("ended with", loss.item(), net[0].weight.sum().item())

main()
"""
RECIPE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x, y = torch.randn(160, 8), torch.randn(160, 1)
    x[AT] = 0

    def train_step(model, batch, optimizer):
        x, y = batch
        optimizer.step()
        optimizer.zero_grad()
        x = x / x.norm(dim=1, keepdim=True)
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    data = list(zip(x.split(8), y.split(8)))
    return {"model": model, "optimizer": optimizer, "train_step": train_step, "data": data}
"""


def told(folder: Path, *target: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """The report."""
    done = nanodoc("run", "--output-format", "json", "--output", "report.json", *target, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report, done


def line_with(text: str) -> int:
    return next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def line_of(found: dict[str, Any]) -> int:
    line: int = found["culprit"]["location"]["line"]
    return line


HOW = ["plainly", "clipped", "scaled", "left", "parts"]
SICK = {"forward": ("ND202", "xb = xb /"), "backward": ("ND301", "out = out +")}


@pytest.mark.parametrize("how", HOW)
def test_a_healthy_script_is_watched_whole_and_stays_as_it_is(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    report, done = told(tmp_path, "train.py", how, "no")
    loop = line_with("for xb, yb")
    assert report["run"]["step_found"] == f"step train.py:{loop}, replay of step 0 bitwise the same"
    # after the first backward pass, or the first of those that the first step adds up
    assert (report["findings"], report["vitals"]["steps"]) == ([], 124 if how == "parts" else 127)
    command = [sys.executable, "train.py", how, "no"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == plain.stdout


@pytest.mark.parametrize(
    ("how", "sick"),
    [
        *((how, "forward") for how in HOW),
        # a scaler leaves such a step out: see below
        *((how, "backward") for how in ("plainly", "clipped", "left")),
    ],
)
def test_what_a_script_does_in_an_iteration_is_its_own(tmp_path: Path, how: str, sick: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (found,) = told(tmp_path, "train.py", how, sick)[0]["findings"]
    code, text = SICK[sick]
    assert (found["code"], line_of(found)) == (code, line_with(text))
    if how == "parts":
        return
    assert found["culprit"]["dataset_indices"] == [611]
    assert any(fix["verified"] for fix in found["fixes"])
    # of the snapshot, too
    (snapshot,) = tmp_path.glob("nanodoc-out/*.pt")
    done = nanodoc("replay", str(snapshot), cwd=tmp_path)
    assert f"critical[{code}]" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("how", "sick"),
    [("plainly", "forward"), ("plainly", "backward"), ("clipped", "forward"), ("left", "backward")],
)
def test_a_first_iteration_that_is_sick(tmp_path: Path, how: str, sick: str) -> None:
    """The loop is found when its second iteration begins to step: that one was run again, from
    gradients that were not finite, and no line was told."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("x[611] = 0", "x[:] = 0"))
    report, _ = told(tmp_path, "train.py", how, sick)
    (found,) = report["findings"]
    code, text = SICK[sick]
    assert (found["code"], line_of(found), found["step"]) == (code, line_with(text), 0)
    assert report["run"]["reproduced"] == "bitwise"
    assert report["vitals"]["steps"] == 1


def test_a_step_that_its_scaler_leaves_out_is_the_one_before(tmp_path: Path) -> None:
    """The iteration that begins so was run again, and the finding was that of another batch."""
    (tmp_path / "train.py").write_text(SCRIPT)
    report, _ = told(tmp_path, "train.py", "scaled", "backward")
    assert report["findings"] == []
    assert report["vitals"]["skipped_steps"] == 2
    assert "skipped steps" in [row["what"] for row in report["not_checked"]]


@pytest.mark.parametrize("at", [3, 83])
def test_a_recipes_own_step(tmp_path: Path, at: int) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE.replace("AT", str(at)))
    report, _ = told(tmp_path, "recipe.py:build", "--steps", "20")
    (found,) = report["findings"]
    assert (found["code"], line_of(found)) == ("ND202", 16)
    assert report["vitals"]["steps"] == at // 8 + 1
    assert report["vitals"]["loss_first"] != 0
