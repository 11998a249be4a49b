"""A distribution normalises its logits: probabilities given as logits are normalised twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize(("name", "sick"), [("logits", True), ("probs", False)])
def test_probabilities_as_logits(name: str, sick: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))

    def loss_fn(model: nn.Module, states: torch.Tensor) -> torch.Tensor:
        chosen = Categorical(**{name: model(states)})
        actions = states[:, :3].argmax(-1)
        return -(chosen.log_prob(actions) * states.sum(-1).detach()).mean()

    recipe = Recipe(
        model=model,
        data=[torch.rand(16, 4) for _ in range(6)],
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters()),
    )
    names = {f.name for f in diagnose(recipe, 6) if f.severity != "info"}
    assert names == ({"double-softmax"} if sick else set())
