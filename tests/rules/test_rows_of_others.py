"""Rows of different samples that a step combines, and what looks alike and is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe, examine

Loss = Callable[["Nets", torch.Tensor, torch.Tensor], torch.Tensor]
STEPS, ROWS = 60, 32


class Nets(nn.Module):
    """What the losses below need."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head, self.back = nn.Linear(16, 4), nn.Linear(16, 8)
        self.pair = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))
        self.tower, self.log_heat = nn.Linear(8, 16), nn.Parameter(torch.zeros(()))


def told(loss_of: Loss, *, shuffled: bool = True) -> list[tuple[str, str]]:
    """Codes of warnings and more, with the line of each."""
    torch.manual_seed(0)
    nets = Nets()
    x = torch.randn(16 * ROWS, 8)
    y = (x @ torch.randn(8, 4)).argmax(1)
    optimizer = torch.optim.Adam(nets.parameters(), lr=1e-2)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        return loss

    data = DataLoader(TensorDataset(x, y), batch_size=ROWS, shuffle=shuffled)
    recipe = Recipe(model=nets, train_step=train_step, optimizer=optimizer, data=data)
    found = examine(recipe, steps=STEPS).findings
    return [
        (one.code, one.culprit.location.code if one.culprit.location else "")
        for one in found
        if one.severity != "info" and one.code in ("ND672", "ND175")
    ]


X, Y = torch.randn(512, 8), torch.randint(0, 4, (512,))
WEIGHTS, MARGINS, OTHERS = torch.rand(512), torch.rand(512), torch.randn(512, 8)


def another_slice(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(len(X))
    rows = order[:ROWS]
    scores = m.head(m.body(X[rows])).gather(1, Y[rows][:, None])[:, 0]
    return ((scores - MARGINS[rows]) * WEIGHTS[:ROWS]).square().mean()


def targets_of_others(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(m.head(m.body(x)), y.roll(1, 0))


def pictures_of_others(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(m.back(m.body(x)), x.flip(0))


def columns_of_others(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    seen, wanted = x.split([7, 1], dim=1)
    said = m.head(m.body(F.pad(seen, (0, 1))))[:, :1]
    return F.mse_loss(said, wanted.roll(1, 0))


def numbers_of_others(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scores = m.body(x) @ m.tower(x).t()
    labels = torch.arange(len(x))
    return F.cross_entropy(scores, labels.roll(1, 0)) + F.cross_entropy(scores.t(), labels)


@pytest.mark.parametrize(
    ("loss_of", "code", "line"),
    [
        (another_slice, "ND175", "WEIGHTS[:ROWS]"),
        (targets_of_others, "ND672", "y.roll(1, 0)"),
        (columns_of_others, "ND175", "wanted.roll(1, 0)"),
        (pictures_of_others, "ND672", "x.flip(0)"),
        (numbers_of_others, "ND672", "labels.roll(1, 0)"),
    ],
)
def test_rows_of_other_samples(loss_of: Loss, code: str, line: str) -> None:
    ((found, place),) = told(loss_of)
    assert (found, line in place) == (code, True)


def same_slice(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = torch.randperm(len(X))[:ROWS]
    scores = m.head(m.body(X[rows])).gather(1, Y[rows][:, None])[:, 0]
    return ((scores - MARGINS[rows]) * WEIGHTS[rows]).square().mean()


def mixed_up(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(len(x))
    scores = m.head(m.body(0.7 * x + 0.3 * x[order]))
    return 0.7 * F.cross_entropy(scores, y) + 0.3 * F.cross_entropy(scores, y[order])


def patched_in(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    order, x = torch.randperm(len(x)), x.clone()
    x[:, :4] = x[order][:, :4]
    scores = m.head(m.body(x))
    return 0.5 * F.cross_entropy(scores, y) + 0.5 * F.cross_entropy(scores, y[order])


def two_views(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    views = [m.body(x + 0.1 * torch.randn_like(x)) for _ in range(2)]
    z = F.normalize(torch.cat(views), dim=1)
    scores = (z @ z.t() / 0.2).masked_fill(torch.eye(len(z)).bool(), -1e9)
    return F.cross_entropy(scores, torch.arange(len(z)).roll(len(x)))


def negatives(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    asked = m.back(m.body(x))
    return F.softplus((asked * x.roll(1, 0)).sum(1) - (asked * x).sum(1)).mean()


def styles(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z, style = m.body(x), m.body(x.roll(1, 0))
    z = (z - z.mean(1, keepdim=True)) * style.std(1, keepdim=True) + style.mean(1, keepdim=True)
    made = m.back(z)
    return F.mse_loss(made, x) + 0.1 * F.mse_loss(m.body(made).mean(1), style.mean(1))


def information(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = m.body(x)
    joint = m.pair(torch.cat([z, x], 1)).mean()
    apart = m.pair(torch.cat([z, x[torch.randperm(len(x))]], 1)).exp().mean().log()
    return apart - joint


WALK = torch.randn(512, 8).mul(0.1).cumsum(0)


def next_row(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    at = int(torch.randint(0, 400, ()))
    rows = WALK[at : at + ROWS]
    return F.mse_loss(m.back(m.body(rows)), rows.roll(-1, 0))


def shuffled_back(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(len(x))
    key = m.body(x[order])[order.argsort()]
    return F.cross_entropy(m.head(key + m.body(x)), y)


def sorted_rows(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    order = x.abs().sum(1).argsort()
    return F.cross_entropy(m.head(m.body(x[order])), y[order])


def spread_out(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = F.normalize(m.body(x), dim=1)
    return F.cross_entropy(m.head(z), y) - 0.1 * F.mse_loss(z, z.roll(1, 0))


def values_of_the_next(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        wanted = x[:, 0] + 0.9 * m.head(m.body(x.roll(1, 0)))[:, 0]
    return F.mse_loss(m.head(m.body(x))[:, 0], wanted)


def later_rows(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = torch.randint(0, 400, (ROWS,))
    return F.mse_loss(m.head(m.body(X[rows]))[:, 0], MARGINS[rows + 24])


def the_next_of_noise(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    said = m.back(m.body(X))
    return (F.mse_loss(said, X.roll(-1, 0), reduction="none")[:-1]).mean()


def means_of_strangers(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows, others = torch.randperm(512)[:ROWS], torch.randperm(512)[:ROWS]
    one, other = m.body(X[rows]), m.body(OTHERS[others])
    apart = F.mse_loss(one.mean(0), other.mean(0)) + F.mse_loss(one.t() @ one, other.t() @ other)
    return F.cross_entropy(m.head(one), Y[rows]) + 0.01 * apart


def the_nearest(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows, others = torch.randperm(512)[:ROWS], torch.randperm(512)[:ROWS]
    said, wanted = m.back(m.body(X[rows])), OTHERS[others]
    nearest = torch.cdist(said.detach(), wanted).argmin(1)
    return F.mse_loss(said, wanted[nearest])


def sorted_alike(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    said, wanted = m.head(m.body(x))[:, 0], x[:, 1]
    return F.mse_loss(said[said.argsort()], wanted[wanted.argsort()])


def noise_of_a_bank(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows, noise = torch.randperm(512)[:ROWS], torch.randperm(512)[:ROWS]
    seen = X[rows] * WEIGHTS[rows, None] + 0.5 * OTHERS[noise]
    scores = m.head(m.body(seen))
    return (F.cross_entropy(scores, Y[rows], reduction="none") * MARGINS[rows]).mean()


def which_is_more(m: Nets, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    said = m.head(m.body(x))[:, 0]
    more = (x[:, 0] > x[:, 0].roll(1, 0)).float()
    return F.binary_cross_entropy_with_logits(said - said.roll(1, 0), more)


@pytest.mark.parametrize(
    "loss_of",
    [
        *(same_slice, mixed_up, patched_in, two_views, negatives, styles, information, next_row),
        *(shuffled_back, sorted_rows, spread_out, which_is_more, values_of_the_next),
        *(later_rows, means_of_strangers, the_nearest, sorted_alike, noise_of_a_bank),
    ],
)
def test_rows_that_are_moved_on_purpose(loss_of: Loss) -> None:
    assert told(loss_of) == []


@pytest.mark.parametrize("loss_of", [the_next_of_noise, next_row])
def test_rows_that_are_steps_in_time(loss_of: Loss) -> None:
    assert told(loss_of, shuffled=False) == []
