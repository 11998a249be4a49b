"""A train_step that moves the weights itself: a gradient that is not finite was no trip, and a loss
that was not finite was taken for a step that the training left out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import line_of, run_engine


@pytest.mark.parametrize("of_gradient", [True, False])
def test_the_first_bad_step_is_examined(of_gradient: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    def train_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        out = model(batch)
        if float(batch[0, 0]) == 7:
            out = out + (out - out.detach()).abs().sqrt() if of_gradient else out / (out - out)
        loss = out.pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(-0.1 * parameter.grad)
        return loss

    data = [torch.randn(8, 4) for _ in range(6)]
    data[2][0, 0] = 7
    outcome = run_engine(Recipe(model=model, train_step=train_step, data=data), steps=6)
    assert outcome.evidence.trip is not None
    assert outcome.evidence.trip.step == 2
    location = outcome.evidence.births[0].op.location
    assert location is not None
    assert location.line == line_of(__file__, "if of_gradient else out / (out - out)")
