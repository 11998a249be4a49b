"""Codes that are looked up: whether a gradient finds its way back to what they were chosen for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        return code.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], gradients[0]


class Quantised(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.codes = nn.Embedding(16, 4)
        self.way = way

    def forward(self, x: torch.Tensor) -> Any:
        z = self.encoder(x)
        chosen = torch.cdist(z.detach(), self.codes.weight.detach()).argmin(1)
        if self.way == "one_hot":
            code = F.one_hot(chosen, 16).float() @ self.codes.weight
        else:
            code = self.codes(chosen)
        near = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        if self.way == "straight":
            code = z + (code - z).detach()
        elif self.way == "by a function":
            code = Straight.apply(z, code)
        elif self.way == "turned":
            code = code + (z - code).detach()
        elif self.way == "detached":
            code = code.detach()
        elif self.way == "cluster":
            return x, near
        return self.decoder(code.view_as(z)), near


class Talker(nn.Module):
    """It reads its own last word, which is a choice by scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.words, self.decoder = (
            nn.Linear(8, 16),
            nn.Embedding(16, 4),
            nn.Linear(4, 8),
        )

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.encoder(x)
        word = self.words(scores.argmax(1))
        return self.decoder(word), F.cross_entropy(scores, x.argmax(1))


class Cheapest(nn.Module):
    """It decides by costs, and looks up what follows from the decision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.costs, self.follows = nn.Linear(8, 16), nn.Embedding(16, 4)
        self.decoder = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> Any:
        costs = self.costs(x)
        return self.decoder(self.follows(costs.argmin(1))), F.cross_entropy(-costs, x.argmax(1))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: Quantised("plain"), "code = self.codes(chosen)"),
        (lambda: Quantised("one_hot"), "code = F.one_hot(chosen, 16).float() @ self.codes.weight"),
        (lambda: Quantised("turned"), "code = code + (z - code).detach()"),
        (lambda: Quantised("detached"), "code = code.detach()"),
        (lambda: Quantised("straight"), None),
        (lambda: Quantised("by a function"), None),
        (lambda: Quantised("cluster"), None),
        (Talker, None),
        (Cheapest, None),
    ],
)
def test_a_way_back(model: Any, expected: str | None) -> None:
    made = model()

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        out, near = model(batch)
        result: torch.Tensor = F.mse_loss(out, batch) + near
        return result

    recipe = Recipe(
        model=made,
        loss_fn=loss_fn,
        data=list(torch.randn(6, 32, 8)),
        optimizer=torch.optim.Adam(made.parameters(), lr=1e-2),
    )
    found = [f for f in diagnose(recipe, 6) if f.code == "ND501"]
    assert [f.culprit.location.code for f in found if f.culprit.location] == (
        [expected] if expected else []
    )
