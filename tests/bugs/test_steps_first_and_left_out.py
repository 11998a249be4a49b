"""Loops that begin with the optimizer's step of the iteration before: one that looks at the gradients
there, and leaves a bad batch out, was ended with a critical finding; a first iteration left for its
loss was healthy; an iteration that only steps counted as one with the loss 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bugs.test_optimizers_that_step_first import told

SCRIPT = """
import math
import sys

import torch
from torch import nn

how, *sick = sys.argv[1:]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
x, y = torch.randn(41, 16, 8), torch.randn(41, 16, 1)
for at in sick:
    x[int(at), 3] = 0

for number, (xb, yb) in enumerate(zip(x.unbind(), y.unbind(), strict=True)):
    if how == "guarded":
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if norm.isfinite():
            optimizer.step()
    elif how == "mended":
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0)
        optimizer.step()
    else:
        optimizer.step()
    optimizer.zero_grad(set_to_none=how != "zeroed")
    if number == 40:
        break
    if how == "sparse" and number % 4 == 2:
        continue
    xb = xb / xb.norm(dim=1, keepdim=True)
    loss = (net(xb) - yb).square().mean()
    if how == "left" and not math.isfinite(loss):
        break
    if how == "exits" and not math.isfinite(loss):
        sys.exit(3)
    loss.backward()
print("ended with", loss.item(), net[0].weight.sum().item())
"""


def examined(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    (folder / "train.py").write_text(SCRIPT)
    report, done = told(folder, "train.py", *arguments)
    return report, done.stdout


@pytest.mark.parametrize("how", ["guarded", "mended"])
@pytest.mark.parametrize("sick", [["20"], ["1"], ["39"], ["12", "13", "14", "30"]])
def test_a_bad_batch_that_is_left_out_is_none_of_its_faults(
    tmp_path: Path, how: str, sick: list[str]
) -> None:
    report, out = examined(tmp_path, how, *sick)
    assert report["findings"] == []
    assert "ended with" in out
    assert report["vitals"]["steps"] == 39
    assert report["vitals"]["skipped_steps"] == len(sick)


def test_a_training_that_leaves_out_everything_comes_to_nothing(tmp_path: Path) -> None:
    report, _ = examined(tmp_path, "guarded", *map(str, range(20, 40)))
    (found,) = report["findings"]
    assert (found["code"], found["step"]) == ("ND202", 19)  # the first of them
    assert report["vitals"]["skipped_steps"] == 0


@pytest.mark.parametrize("how", ["plainly", "zeroed"])
@pytest.mark.parametrize("at", [1, 2, 20])
def test_an_optimizer_that_steps_with_it_is_sick(tmp_path: Path, how: str, at: int) -> None:
    report, out = examined(tmp_path, how, str(at))
    (found,) = report["findings"]
    assert (found["code"], found["step"]) == ("ND202", at - 1)
    assert any(fix["verified"] for fix in found["fixes"])
    assert report["vitals"]["steps"] == at
    assert out == ""


@pytest.mark.parametrize("how", ["left", "exits"])
@pytest.mark.parametrize("at", [1, 2, 20])
def test_a_loop_that_is_left_for_its_loss(tmp_path: Path, how: str, at: int) -> None:
    (found,) = examined(tmp_path, how, str(at))[0]["findings"]
    assert (found["code"], found["step"]) == ("ND202", at - 1)


@pytest.mark.parametrize("how", ["plainly", "sparse"])
def test_an_iteration_that_only_steps_is_no_step(tmp_path: Path, how: str) -> None:
    report, out = examined(tmp_path, how)
    vitals = report["vitals"]
    assert report["findings"] == []
    assert vitals["loss_last"] == pytest.approx(float(out.split()[2]))
    assert vitals["loss_lowest"] > 0
    assert vitals["steps"] == (39 if how == "plainly" else 29)
