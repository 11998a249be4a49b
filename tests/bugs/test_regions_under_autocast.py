"""Autocast casts weights with gradients on even inside no_grad, to be able to cache them; that was
taken for the region's end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import marked, run_engine


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = (
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)),
            nn.Linear(8, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():  # the region
            h = torch.softmax(self.encoder(x).float(), -1)
        return self.head(h).float()  # type: ignore[no-any-return]


def test_the_region_is_named_under_autocast() -> None:
    torch.manual_seed(0)
    model = Half()
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=[(torch.randn(8, 4), torch.randn(8, 1))],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    graph = run_engine(recipe, 2, amp_dtype=torch.bfloat16).evidence.graph
    assert graph is not None
    (cut,) = graph.cuts
    assert cut.kind == "region"
    assert cut.region is not None
    assert cut.region.line == marked(__file__, "the region")
    assert len(cut.orphans) == 4
