"""Attention over the batch on purpose (the batch given as one sequence) was taken for swapped
dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from tests.helpers import diagnose


class Relates(nn.Module):
    """A layer that lets the samples of a batch attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.relate, self.out = (
            nn.Linear(6, 8),
            nn.MultiheadAttention(8, 2),
            nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).unsqueeze(1)
        return self.out((h + self.relate(h, h, h)[0]).squeeze(1))  # type: ignore[no-any-return]


def test_a_batch_given_as_one_sequence_is_meant() -> None:
    torch.manual_seed(0)
    model = Relates()
    data = DataLoader(TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,))), batch_size=8)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    assert diagnose(recipe, steps=3) == ()
