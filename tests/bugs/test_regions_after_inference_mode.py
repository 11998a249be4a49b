"""A region opened after an inference_mode block was blamed on that block, which had long ended."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import marked, run_engine


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.seen = nn.Linear(4, 8), nn.Linear(8, 1), 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self.seen = float(x.abs().mean())
        with torch.no_grad():  # the guilty one
            h = self.encoder(x)
        return self.head(h)  # type: ignore[no-any-return]


def test_the_later_region_is_named() -> None:
    torch.manual_seed(0)
    model = Both()
    before = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=[(torch.randn(8, 4), torch.randn(8, 1))],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    graph = run_engine(recipe, 2).evidence.graph
    assert graph is not None
    (cut,) = graph.cuts
    assert cut.region is not None
    assert (cut.region_kind, cut.region.line) == ("no_grad", marked(__file__, "the guilty one"))
    assert (torch.inference_mode.__enter__, torch.inference_mode.__exit__) == before
