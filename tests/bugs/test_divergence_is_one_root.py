"""A run that diverged has one cause, the updates, however many ops overflowed in its last step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def test_a_learning_rate_far_too_high() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 1))
    x = torch.randn(64, 8)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=[(x, x.sum(1, keepdim=True))],
        optimizer=torch.optim.SGD(model.parameters(), lr=1.5),
    )
    (finding,) = diagnose(recipe, steps=60)
    assert finding.name == "divergence"
    assert finding.culprit.kind == "optimizer"
    assert dict(finding.evidence)["learning rate"] == 1.5
