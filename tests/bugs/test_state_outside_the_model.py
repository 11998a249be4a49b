"""Looks that run the model again on the first step moved generators, deques and counters on, and so
changed the run itself."""

from __future__ import annotations

import itertools
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import run_engine

STEPS = 6


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.gate = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(4, 8)
        self.noise, self.recent, self.count = (
            torch.Generator().manual_seed(3),
            deque([1.0], maxlen=3),
            itertools.count(1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(self.gate(x))  # cut off: there is a fix to be tried
        h = self.body(x) * gate + 0.1 * torch.randn(len(x), 8, generator=self.noise) / next(
            self.count
        )
        self.recent.append(1.0 + float(h.detach().abs().mean()))
        return self.head(h) / sum(self.recent)  # type: ignore[no-any-return]


def recipe() -> Recipe:
    torch.manual_seed(0)
    model = Stateful()
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(STEPS)]
    return Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=data,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    )


def test_the_losses_are_those_of_a_bare_run() -> None:
    bare = recipe()
    (optimizer,), losses = bare.optimizers, []
    for batch in bare.data:
        optimizer.zero_grad()
        assert bare.loss_fn is not None
        loss = bare.loss_fn(bare.model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    outcome = run_engine(recipe(), STEPS)
    assert outcome.losses == losses
    assert outcome.evidence.graph is not None
    assert outcome.evidence.graph.cuts
