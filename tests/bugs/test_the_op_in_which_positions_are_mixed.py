"""A model of the next token that reads it: the first call that mixes positions is named, and no
attention that is causal already is told to become so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.diagnosis.finding import Finding
from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose

HEADS, WIDTH = 2, 16


class Model(nn.Module):
    def __init__(self, attend: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(30, WIDTH), nn.Embedding(16, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 30)
        self.attend = attend

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.attend(self, x)
        out: torch.Tensor = self.head(x)
        return out


def _heads(x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    return x.view(b, t, HEADS, c // HEADS).transpose(1, 2)


def _joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def _split_without_moving(model: Any, x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    q, k, v = model.first(x).chunk(3, -1)
    q = q.reshape(b, HEADS, t, c // HEADS)  # the cause
    k, v = k.reshape(b, HEADS, t, c // HEADS), v.reshape(b, HEADS, t, c // HEADS)
    return _joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def _batch_and_time_regrouped(model: Any, x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    x = x.reshape(t, b, c)  # the cause
    q, k, v = (_heads(part.transpose(0, 1)) for part in model.first(x).chunk(3, -1))
    return _joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def _batch_and_time_of_heads_regrouped(model: Any, x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    parts = model.first(x).chunk(3, -1)
    q, k, v = (p.reshape(t, b, HEADS, c // HEADS) for p in parts)  # the cause
    q, k, v = q.permute(1, 2, 0, 3), k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3)
    return _joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def _second_attention_sees_all(model: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(part) for part in model.first(x).chunk(3, -1))
    x = x + _joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    q, k, v = (_heads(part) for part in model.second(x).chunk(3, -1))
    return _joined(F.scaled_dot_product_attention(q, k, v))  # the cause


def _mean_over_positions(model: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(part) for part in model.first(x).chunk(3, -1))
    x = x - x.mean(1, keepdim=True)  # the cause
    return x + _joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def _by_hand_without_a_mask(model: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(part) for part in model.first(x).chunk(3, -1))
    weights = F.softmax(q @ k.transpose(-2, -1) / 4, -1)  # the cause
    return _joined(weights @ v)


def _mean_after_a_mask_by_hand(model: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(part) for part in model.first(x).chunk(3, -1))
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) / 4).masked_fill(later, float("-inf"))
    x = _joined(F.softmax(scores, -1) @ v)
    return x - x.mean(1, keepdim=True)  # the cause


def found(attend: Any, *, count: int = 5, length: int = 12) -> list[Finding]:
    model = Model(attend)
    ids = torch.randint(1, 30, (count, length + 1), generator=torch.Generator().manual_seed(1))

    def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recipe = Recipe(model=model, data=[ids] * 4, loss_fn=loss_fn, optimizer=optimizer)
    return [one for one in diagnose(recipe, 4) if one.severity == "critical"]


@pytest.mark.parametrize(
    ("attend", "name"),
    [
        (_split_without_moving, "mixed-dimensions"),
        (_batch_and_time_regrouped, "mixed-dimensions"),
        (_batch_and_time_of_heads_regrouped, "missing-causal-mask"),
        (_second_attention_sees_all, "missing-causal-mask"),
        (_mean_over_positions, "missing-causal-mask"),
        (_by_hand_without_a_mask, "missing-causal-mask"),
        (_mean_after_a_mask_by_hand, "missing-causal-mask"),
    ],
)
def test_the_call_that_mixes_positions_is_the_one_finding(attend: Any, name: str) -> None:
    (finding,) = found(attend)
    assert finding.name == name
    assert finding.culprit.location is not None
    assert "# the cause" in _line(finding)
    assert "sees the token that it should predict" in finding.title + finding.explanation


@pytest.mark.parametrize(
    "attend",
    [_split_without_moving, _batch_and_time_regrouped, _batch_and_time_of_heads_regrouped],
)
@pytest.mark.parametrize(("count", "length"), [(5, 12), (12, 12), (2, 16)])
def test_a_causal_attention_is_not_told_to_become_causal(
    attend: Any, count: int, length: int
) -> None:
    for finding in found(attend, count=count, length=length):
        assert "is_causal=True" not in _line(finding)
        assert not any("is_causal" in fix.title for fix in finding.fixes), finding


def _line(finding: Finding) -> str:
    assert finding.culprit.location is not None
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return lines[finding.culprit.location.line - 1]
