"""A run that diverges for the size of its loss: a sum, a factor, micro-batches that are not divided
by their number. The line that makes the loss so large is named, and not the learning rate's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nanodoc.examination.loss_scale import LossScaleLook
from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
criterion = torch.nn.MSELoss({reduction})
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
for step in range(60):
    optimizer.zero_grad()
    for part in range({parts}):
        x = torch.randn(64, 16)
        loss = criterion(model(x), 3 * x[:, :4]){times}
        loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("reduction", "times", "parts", "line"),
    [
        ("reduction='sum'", "", 1, "criterion = torch.nn.MSELoss"),
        ("", " * len(x)", 1, "loss = criterion"),
        ("", "", 40, "loss.backward()"),
        ("", " * 40 / 40", 1, None),
    ],
)
def test_the_line(tmp_path: Path, reduction: str, times: str, parts: int, line: str | None) -> None:
    script = tmp_path / "train.py"
    rate = 2.5 if line is None else 0.15
    script.write_text(SCRIPT.format(reduction=reduction, times=times, parts=parts, rate=rate))
    told = nanodoc("run", "train.py", cwd=tmp_path).stderr
    assert "critical[ND606]" in told or "critical[ND601]" in told
    wanted = line or "optimizer = torch.optim.SGD"
    assert f"--> train.py:{line_of(script, wanted)}:" in told
    words = " ".join(told.split())  # whatever the width of the terminal
    assert ("With learning rates that many times lower" in words) == (line is not None)


def test_a_sum_counts_targets_and_not_classes() -> None:
    scores, targets = torch.randn(8, 5, requires_grad=True), torch.randint(5, (8,))
    with LossScaleLook() as look:
        F.cross_entropy(scores, targets, reduction="sum").backward()
    assert look.found is not None
    assert look.found.times == 8
    with LossScaleLook() as look:
        (F.mse_loss(scores, torch.zeros(8, 5), reduction="sum") / 8).backward()
    assert look.found is not None
    assert look.found.times == 5
    with LossScaleLook() as look:
        (F.cross_entropy(scores, targets, reduction="sum") / len(targets)).backward()
    assert look.found is None


def test_the_largest_of_several_terms() -> None:
    scores, targets = torch.randn(8, 5, requires_grad=True), torch.randint(5, (8,))
    for loss in (
        lambda: F.cross_entropy(scores, targets) + summed(scores),
        lambda: summed(scores) + 0.1 * scores.abs().max(),
    ):
        with LossScaleLook() as look:
            loss().backward()
        assert look.found is not None
        assert look.found.times == 40
    with LossScaleLook() as look:
        (F.cross_entropy(scores, targets) + scores.abs().max()).backward()
    assert look.found is None


def summed(scores: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(scores, torch.zeros(8, 5), reduction="sum")
