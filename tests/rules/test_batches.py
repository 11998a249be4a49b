"""Batches that compute and teach little."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose


def run(
    x: torch.Tensor,
    y: torch.Tensor,
    model: nn.Module | None = None,
    data: Any = None,
    steps: int = 12,
) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, 3))
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data=data or DataLoader(TensorDataset(x, y), batch_size=16),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return diagnose(recipe, steps)


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [one.code for one in findings if one.severity != "info"]


def table(rows: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, 6)
    return x, x[:, :3].argmax(1)


@pytest.mark.parametrize(
    "change", [lambda x: 255 * torch.rand_like(x), lambda x: x + 40, lambda x: 1e4 * x]
)
def test_raw_inputs(change: Any) -> None:
    x, y = table()
    found = run(change(x), y)
    assert codes(found)[:1] == ["ND107"]
    assert found[0].culprit.batch_path == "batch[0]"


def test_raw_inputs_behind_a_normalisation_and_single_outliers_are_left_alone() -> None:
    x, y = table()
    torch.manual_seed(0)
    first = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    second = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    assert codes(run(x + 40, y, first)) == []
    assert codes(run(255 * torch.rand_like(x), y, second)) == []
    x[3] *= 200
    assert codes(run(x, y)) == []


def test_a_loader_that_gives_the_same_batch_again_and_again() -> None:
    x, y = table()
    batches = DataLoader(TensorDataset(x, y), batch_sampler=[list(range(16))] * 8)
    assert codes(run(x, y, data=batches)) == ["ND108"]


def test_one_batch_on_purpose_is_no_mistake() -> None:
    x, y = table(16)
    assert codes(run(x, y, data=[(x, y)])) == []
    assert codes(run(x, y, data=DataLoader(TensorDataset(x, y), batch_size=16))) == []


def test_inputs_that_are_all_the_same() -> None:
    x, y = table()
    assert codes(run(torch.zeros_like(x), y)) == ["ND108"]
    assert codes(run(x[:1].expand(128, 6).clone(), y)) == ["ND108"]


def test_rare_classes_are_worth_knowing_and_no_more() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = (torch.arange(256) % 24 == 0).long()
    found = run(x, y, data=DataLoader(TensorDataset(x, y), batch_size=128))
    assert [(one.code, one.severity) for one in found] == [("ND109", "info")]


class Words(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.embedding, self.head, self.masked = nn.Embedding(30, 8), nn.Linear(8, 3), masked

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.embedding(ids)
        if self.masked:
            states = states * (ids != 0).unsqueeze(-1)
        return self.head(states.mean(1))


def sentences(longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(1, 30, (128, 24))
    for row in ids:
        row[int(torch.randint(2, longest, ())) :] = 0
    return ids, ids[:, 0] % 3


def test_padding_that_nothing_masks() -> None:
    ids, y = sentences(longest=9)
    assert codes(run(ids, y, Words(masked=False))) == ["ND110"]
    assert codes(run(ids, y, Words(masked=True))) == []
    ids, y = sentences(longest=24)
    assert codes(run(ids, y, Words(masked=False))) == []


# -- indices and labels ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 2])
def test_an_id_beyond_the_table_on_the_first_step_and_on_a_later_one(step: int) -> None:
    ids, y = sentences(longest=24)
    ids[16 * step + 5, 1] = 30
    first = run(ids, y, Words(masked=True))[0]
    assert first.code == "ND102"
    assert first.culprit.module == "embedding"
    assert first.culprit.samples == (5,)
    notes = dict(first.evidence)
    assert (notes["value"], notes["position"]) == (30, "[5, 1]")
    assert "30 rows (0…29)" in first.title


def test_labels_counted_from_one() -> None:
    x, y = table()
    found = run(x, y + 1)
    assert found[0].code == "ND103"
    assert "y - 1" in found[0].fixes[0].title


def test_ignored_labels_are_in_range() -> None:
    x, y = table()
    y[::3] = -100
    assert codes(run(x, y)) == []
