"""The GradScaler unscales gradients in an op that returns nothing; the slice must go through it."""

from __future__ import annotations

import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def test_a_nan_gradient_behind_the_scaler() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3, bias=False)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: model(batch).float().pow(2).sqrt().mean(),
        data=[torch.zeros(2, 3)],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        scaler=torch.amp.GradScaler("cpu", init_scale=8.0),
    )
    (finding,) = diagnose(recipe, steps=3, amp_dtype=torch.float16)
    assert finding.name == "infinite-gradient"
    assert finding.step == 0
