"""The tensors of a graph of torch_geometric are the batch's, though it is no container: predictions
that broadcast against its targets were not seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose


class Data:
    """As torch_geometric's: attributes are looked up in a store."""

    def __init__(self, **given: torch.Tensor) -> None:
        self.__dict__["_store"] = given

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            found: torch.Tensor = self.__dict__["_store"][name]
        except KeyError:
            raise AttributeError(name) from None
        return found

    def to_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._store)  # type: ignore[arg-type]  # the store itself


Data.__module__ = "torch_geometric.data.data"


@pytest.mark.parametrize("flat", [True, False])
def test_targets_of_a_graph(flat: bool) -> None:
    torch.manual_seed(0)
    drawn = torch.Generator().manual_seed(0)
    data = [
        Data(x=torch.randn(16, 3, generator=drawn), y=torch.randn(16, generator=drawn))
        for _ in range(4)
    ]
    model = nn.Linear(3, 1)

    def loss_fn(model: Any, graph: Any) -> Any:
        out = model(graph.x)
        return ((out.squeeze(-1) if flat else out) - graph.y).pow(2).mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    recipe = Recipe(model=model, data=data, loss_fn=loss_fn, optimizer=optimizer)
    found = {f.name for f in diagnose(recipe, 12)}
    assert ("broadcast-loss" in found) is not flat
