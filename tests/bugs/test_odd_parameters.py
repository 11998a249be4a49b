"""Parameters of lazy modules that are never called, sparse ones, and a model that compares all
pairs of its batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from tests.helpers import diagnose


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out, self.spare = nn.Linear(4, 3), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)  # type: ignore[no-any-return]


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.links, self.out = nn.Parameter(torch.eye(4).to_sparse()), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.sparse.mm(self.links, x.t()).t())  # type: ignore[no-any-return]


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.out((h @ h.t()).softmax(-1) @ h)  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [Lazy, Sparse, Pairs])
@pytest.mark.filterwarnings("ignore:.*Lazy modules.*:UserWarning")
def test_they_are_healthy(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = build()
    data = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,))), batch_size=8)
    optimizer = torch.optim.SGD(
        [p for name, p in model.named_parameters() if "spare" not in name], lr=0.1
    )
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        data=data,
        optimizer=optimizer,
    )
    assert [f.severity for f in diagnose(recipe, steps=3) if f.severity != "info"] == []
