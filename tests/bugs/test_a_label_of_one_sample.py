"""A loss that reads the label of one sample was told of a data loader that does not shuffle: as if
all samples of the batch had that label."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def codes(*, first_only: bool) -> set[str]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(20, 24, 4), torch.randint(0, 3, (20, 24))
    y[:, 0] = torch.arange(20) % 3
    if not first_only:
        y = y[:, :1].expand(-1, 24).contiguous()  # a loader that does not shuffle

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores = model(batch[0])
        if first_only:
            return F.cross_entropy(scores[0], batch[1][0])
        return F.cross_entropy(scores, batch[1])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = list(zip(x, y, strict=True))
    recipe = Recipe(model=model, loss_fn=loss_fn, optimizer=optimizer, data=data)
    return {finding.code for finding in diagnose(recipe, 20)}


def test_one_label_is_no_batch_of_one_class() -> None:
    assert "ND115" in codes(first_only=False)
    found = codes(first_only=True)
    assert "ND115" not in found
    assert "ND681" in found
