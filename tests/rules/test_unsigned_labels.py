"""Labels 0 and 1 for losses that want 1 and -1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def codes(loss: Callable[..., Any], signed: bool) -> set[str]:
    torch.manual_seed(0)
    x, other = torch.randn(8, 16, 6), torch.randn(8, 16, 6)
    same = ((x * other).sum(-1) > 0).float()
    model = nn.Linear(6, 4)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=lambda model, b: loss(model(b[0]), model(b[1]), 2 * b[2] - 1 if signed else b[2]),
        data=list(zip(x, other, same, strict=True)),
    )
    return {finding.code for finding in diagnose(recipe, 8)}


@pytest.mark.parametrize(
    "loss",
    [
        F.cosine_embedding_loss,
        lambda a, b, target: F.hinge_embedding_loss((a - b).norm(dim=1), target),
        lambda a, b, target: F.margin_ranking_loss(a[:, 0], b[:, 0], target),
        lambda a, b, target: F.soft_margin_loss((a * b).sum(1), target),
    ],
)
def test_zeros_are_no_labels(loss: Callable[..., Any]) -> None:
    assert "ND134" in codes(loss, signed=False)
    assert "ND134" not in codes(loss, signed=True)
