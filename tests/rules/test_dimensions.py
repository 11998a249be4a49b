"""Shapes that fit and values that are mixed: view where a dimension was to be moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose

Way = Callable[[torch.Tensor, nn.ModuleDict], torch.Tensor]

N, T, E, H = 4, 10, 24, 3


def run(way: Way) -> tuple[Finding, ...]:
    """Of a model that has `way` in its forward: (N, T, E) to anything."""
    torch.manual_seed(0)
    layers = nn.ModuleDict(
        {
            "first": nn.Linear(E, E),
            "picture": nn.Conv2d(1, 8, 3, padding=1),
            "recurrent": nn.LSTM(E, 6, num_layers=2, batch_first=True),
        }
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * way(layers["first"](x), layers).pow(2).flatten(1).mean(1)

    model = Model()
    data = [(torch.randn(N, T, E), torch.rand(N)) for _ in range(6)]
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        data=data,
    )
    return tuple(found for found in diagnose(recipe, 6) if found.code == "ND121")


def as_features_first(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return x.view(N, E, T)


def heads_split(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return x.view(N, H, T, E // H)


def heads_split_by_numbers(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return x.view(4, 3, 10, 8)


def heads_joined(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    q = x.view(N, T, H, 8).transpose(1, 2)
    weights = (q @ q.transpose(2, 3)).softmax(-1)
    return (weights @ q).reshape(N, T, E)


def channels_last(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return layers["picture"](x[:, None]).reshape(N, T * E, 8).mean(1)


def channels_first(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return layers["first"](x).reshape(N, E, 5, 2).mean((2, 3))


def last_states(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return layers["recurrent"](x)[1][0].view(N, -1)


@pytest.mark.parametrize(
    "way",
    [
        as_features_first,
        heads_split,
        heads_split_by_numbers,
        heads_joined,
        channels_last,
        channels_first,
        last_states,
    ],
    ids=lambda way: way.__name__,
)
def test_values_that_are_mixed(way: Way) -> None:
    [found] = run(way)
    assert found.culprit.location is not None
    assert "view(" in found.culprit.location.code or "reshape(" in found.culprit.location.code


def moved(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return x.transpose(1, 2).reshape(N, E * T)


def attention(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    q = x.view(N, T, H, 8).transpose(1, 2)
    weights = (q @ q.transpose(2, 3)).softmax(-1)
    return (weights @ q).transpose(1, 2).reshape(N, T, E)


def frames_in_pairs(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    """As a pyramid of recurrent layers does it; by their sizes it could be a swap."""
    return x[:, :, :5].reshape(N, T // 2, 5 * 2)


def patches(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    grid = layers["picture"](x[:, None]).flatten(2).transpose(1, 2)
    return grid.view(N, T, E, 8)


def skewed(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    """Relative positions, as in the Music Transformer: a column more, and the rows slip."""
    scores = F.pad(x @ x.transpose(1, 2), (1, 0))
    return scores.reshape(N, T + 1, T)[:, 1:]


def skewed_heads(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    q = x.view(N, T, H, 8).transpose(1, 2)
    scores = F.pad(q @ q.transpose(2, 3), (1, 0))
    size = list(scores.shape)
    return scores.view(size[0], size[1], size[3], size[2])[:, :, 1:]


def heads_of_the_batch(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    """As in fairseq, (time, batch, features): as many samples as a head has features."""
    some = torch.cat([x, x]).transpose(0, 1)  # (T, 8, E)
    heads = some.reshape(T, 8 * H, 8).transpose(0, 1)  # (8 · H, T, 8)
    out = (heads @ heads.transpose(1, 2)).softmax(-1) @ heads
    return out.transpose(0, 1).contiguous().view(T, 8, E).transpose(0, 1)[:N]


def square(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    """As many channels as rows: nothing tells which is which."""
    return x[:, :8, :8].repeat(1, 8, 1).view(N, 8, 8, 8)


def groups(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return layers["picture"](x[:, None]).reshape(N, 2, -1).var(2)


def last_states_moved(x: torch.Tensor, layers: nn.ModuleDict) -> torch.Tensor:
    return layers["recurrent"](x)[1][0].transpose(0, 1).reshape(N, -1)


@pytest.mark.parametrize(
    "way",
    [
        moved,
        attention,
        frames_in_pairs,
        skewed,
        skewed_heads,
        heads_of_the_batch,
        patches,
        square,
        groups,
        last_states_moved,
    ],
    ids=lambda way: way.__name__,
)
def test_shapes_that_are_meant(way: Way) -> None:
    assert run(way) == ()


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("time_first", [True, False])
def test_targets_in_the_order_of_the_outputs(transposed: bool, time_first: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 7))

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out = model(batch.t() if time_first else batch)
        target = batch.t() if transposed else batch
        return F.nll_loss(F.log_softmax(out, -1).flatten(0, 1), target.reshape(-1))

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        data=[torch.randint(0, 7, (5, 9)) for _ in range(8)],
    )
    codes = [found.code for found in diagnose(recipe, 8)]
    assert ("ND125" in codes) == (transposed != time_first)


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("places", [(5, 6), (11,)])
def test_scores_of_places_that_are_flattened(moved: bool, places: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    classes = 4
    kind = nn.Conv2d if len(places) == 2 else nn.Conv1d
    model = kind(3, classes, 3, padding=1)

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores = model(batch[0])
        scores = scores.movedim(1, -1).reshape(-1, classes) if moved else scores.view(-1, classes)
        return F.cross_entropy(scores, batch[1].view(-1))

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        data=[(torch.randn(8, 3, *places), torch.randint(0, classes, (8, *places)))] * 6,
    )
    codes = [found.code for found in diagnose(recipe, 6)]
    assert ("ND121" in codes) != moved
