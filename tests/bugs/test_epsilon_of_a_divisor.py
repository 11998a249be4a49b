"""The epsilon that guards a divisor is found however much stands behind the dividend, and the fix
is one float16 can hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def test_a_lost_epsilon_behind_a_long_dividend() -> None:
    torch.manual_seed(0)

    def loss_fn(model: Any, x: torch.Tensor) -> torch.Tensor:
        top = model(x).half()
        for _ in range(20):
            top = torch.tanh(top) * 0.5
        low = torch.relu(x.sum(1, keepdim=True)).half()
        return (top / (low + 1e-8)).float().mean()

    x = torch.rand(4, 3)
    x[1] = -1.0
    (finding,) = diagnose(Recipe(model=nn.Linear(3, 3), loss_fn=loss_fn, data=[x]))
    assert finding.name == "vanishing-epsilon"
    assert dict(finding.evidence)["constant"] == 1e-8
    assert finding.culprit.samples == (1,)
