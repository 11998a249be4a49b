"""ND606: what is said of a run that diverged is what its stretches showed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe, examine


def test_the_rate_is_named_where_only_a_smaller_one_helps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1))
    x = torch.randn(100, 16, 8)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1.0),
        loss_fn=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        data=list(zip(x, x[:, :, :1], strict=True)),
    )
    finding = examine(recipe, 100).findings[0]
    assert finding.code == "ND606"
    rate = finding.explanation.partition("The learning rate of ")[2]
    assert rate.startswith("1 is too high: with 0.1 times that, the last")
