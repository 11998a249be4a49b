"""A probability that is zero because its score was masked with −inf: log_softmax would give the
−inf back, and is no cure.

The entropy of such a policy was called a log of softmax.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.rules.catalogue import claims
from tests.helpers import run_engine


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_entropy_over_legal_moves(by_hand: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    legal = torch.tensor([[True, True, False], [True, True, True]])

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(model(x).masked_fill(~legal, float("-inf")), 1)
        return (p * torch.log(p)).sum() if by_hand else torch.special.xlogy(p, p).sum()

    outcome = run_engine(
        Recipe(
            model=model,
            loss_fn=loss_fn,
            data=[torch.randn(2, 4)],
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        )
    )
    said = claims(outcome.evidence)
    assert said
    assert not any("log_softmax" in fix.title for claim in said for fix in claim.finding.fixes)
    assert not any(claim.finding.name == "log-of-softmax" for claim in said)
