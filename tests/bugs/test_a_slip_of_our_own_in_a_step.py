"""A NameError in a frame of nanodoc's own, which stood between the user's code and torch, was told as
an exception of theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.errors import UserCodeError, is_users
from nanodoc.trace.functions import FunctionWatch
from tests.helpers import run_engine


def recipe(model: nn.Module) -> Recipe:
    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return torch.tensor([model(x).sum().item() for x in batch]).sum() + model(batch).sum()

    return Recipe(model=model, loss_fn=loss_fn, data=[torch.randn(4, 3) for _ in range(4)])


@pytest.mark.parametrize("kind", [NameError, AttributeError, UnboundLocalError])
def test_it_is_not_the_users(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FunctionWatch, *args: object) -> None:
        raise kind("of ours")

    monkeypatch.setattr("nanodoc.trace.functions.FunctionWatch._export", broken)
    broken.__code__ = broken.__code__.replace(
        co_filename=FunctionWatch._import.__code__.co_filename
    )
    with pytest.raises(kind) as raised:
        run_engine(recipe(nn.Linear(3, 2)), steps=3)
    assert not is_users(raised.value)


def test_the_users_own_slips_stay_theirs() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return self.lin(x)

    outcome = run_engine(recipe(Model()), steps=3)
    assert outcome.evidence.failure is not None
    assert "no attribute 'lin'" in outcome.evidence.failure.message
    assert is_users(UserCodeError(ValueError("theirs"), "forward"))
