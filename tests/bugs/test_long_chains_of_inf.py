"""A long chain of infs is searched once, not once per op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.trace.births import RootSearch
from tests.helpers import run_engine


def test_the_search_looks_at_each_op_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    original = RootSearch._bad_inputs

    def counted(search: RootSearch, index: int) -> Any:
        nonlocal looks
        looks += 1
        return original(search, index)

    monkeypatch.setattr(RootSearch, "_bad_inputs", counted)
    length = 400

    def loss_fn(model: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.log(model(x) * 0.0)
        for _ in range(length):
            y = y * 0.5 + 1.0
        return y.sum()

    outcome = run_engine(Recipe(model=nn.Linear(2, 2), loss_fn=loss_fn, data=[torch.ones(2, 2)]))
    (birth,) = outcome.evidence.births
    assert birth.site.short == "log"
    assert 0 < looks < 10 * 2 * length
