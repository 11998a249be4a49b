"""An exception is blamed on a NaN only where the code had just looked at one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, line_of


def first(loss_fn: Any, batch: Any) -> Finding:
    torch.manual_seed(0)
    return diagnose(Recipe(model=nn.Linear(4, 4), loss_fn=loss_fn, data=[batch]))[0]


def test_a_mask_before_an_unrelated_exception_is_not_blamed() -> None:
    def loss_fn(model: Any, x: torch.Tensor) -> torch.Tensor:
        scores = model(x).masked_fill(torch.eye(4, dtype=torch.bool), float("-inf"))
        weights = F.softmax(scores, -1)
        return weights @ torch.ones(7)  # shapes do not fit

    finding = first(loss_fn, torch.randn(4, 4))
    assert finding.name == "shape-mismatch"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# shapes do not fit")


def test_a_nan_that_surfaces_in_a_distribution() -> None:
    def loss_fn(model: Any, x: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        scaled = logits / x.abs().sum(1, keepdim=True)  # zero over zero
        return -Categorical(logits=scaled, validate_args=True).log_prob(torch.zeros(3)).mean()

    x = torch.ones(3, 4)
    x[2] = 0.0
    finding = first(loss_fn, x)
    assert finding.name == "division-by-zero"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# zero over zero")
    assert finding.culprit.samples == (2,)
    assert any("raises ValueError" in what for what, _ in finding.effects)


def test_an_assertion_on_the_loss() -> None:
    def loss_fn(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = torch.log(F.relu(model(x)) * 0.0).mean()  # log of nothing
        assert torch.isfinite(loss), "loss is not finite"
        return loss

    finding = first(loss_fn, torch.ones(3, 4))
    assert finding.name == "log-of-zero"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# log of nothing")
