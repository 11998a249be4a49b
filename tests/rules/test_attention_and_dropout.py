"""Attention whose softmax goes over the queries, and dropout that eval() does not turn off; what
only looks like it is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

torch.manual_seed(0)
IDS = torch.randint(20, (8, 16, 12))
LABELS = (IDS[..., 0] > IDS[..., 5]).long()


def codes(model: nn.Module) -> set[str]:
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data=list(zip(IDS, LABELS, strict=True)),
    )
    return {finding.code for finding in diagnose(recipe, 8)}


class Attention(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.slots = nn.Embedding(20, 16), nn.Parameter(torch.randn(4, 16))
        self.values, self.out = nn.Linear(16, 16), nn.Linear(16, 2)
        self.how = how

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.words(ids)
        scores = self.slots @ x.transpose(-2, -1) / 4  # (batch, slots, positions)
        if self.how == "queries":
            read = F.dropout(scores.softmax(-2), 0.1, self.training) @ self.values(x)
        elif self.how == "keys":
            read = scores.softmax(-1) @ self.values(x)
        elif self.how == "slots":  # normalised again, as slot attention is
            weights = scores.softmax(-2)
            read = (weights / weights.sum(-1, keepdim=True)) @ self.values(x)
        else:  # from the right, where the second last is what is summed over
            weights = scores.transpose(-2, -1).softmax(-2)
            read = (self.values(x).transpose(-2, -1) @ weights).transpose(-2, -1)
        return self.out(read.mean(1))


def test_attention_over_queries() -> None:
    assert "ND133" in codes(Attention("queries"))
    for how in ("keys", "slots", "right"):
        assert "ND133" not in codes(Attention(how))


class Heads(nn.Module):
    """Four heads of 12 positions."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.asked = nn.Embedding(20, 16), nn.Linear(16, 48)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(16, 2)
        self.how = how

    def forward(self, ids: torch.Tensor) -> Any:
        q, k, v = (part.reshape(16, 12, 4, 4) for part in self.asked(self.words(ids)).chunk(3, -1))
        if self.how.startswith("moved"):
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if self.how.endswith("by hand"):
            scores = (self.norm(q) @ k.transpose(-2, -1)) / 2
            read = scores.softmax(-1) @ v
        else:
            read = F.scaled_dot_product_attention(q, k, v)
        if self.how.startswith("moved"):
            read = read.transpose(1, 2)
        return self.out(read.flatten(2)).mean(1)


@pytest.mark.parametrize("how", ["moved", "moved by hand", "split", "split by hand"])
def test_attention_over_heads(how: str) -> None:
    assert ("ND148" in codes(Heads(how))) == how.startswith("split")


class Dropping(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(20, 16), nn.Linear(16, 2)
        self.layer = nn.Dropout(0.2)
        self.how = how

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.words(ids).mean(1)
        if self.how == "untold" or (self.how == "guarded" and self.training):
            x = F.dropout(x, 0.2)
        elif self.how == "told":
            x = F.dropout(x, 0.2, training=self.training)
        elif self.how == "meant":  # Monte Carlo dropout
            x = F.dropout(x, 0.2, training=True)
        elif self.how == "layer":
            x = self.layer(x)
        elif self.how in ("attention", "attention, gated"):
            p = 0.1 if self.training or self.how == "attention" else 0.0
            x = F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=p)[0]
        elif self.how == "depth":
            x = x * x.new_empty(len(x), 1).bernoulli_(0.8) / 0.8
        elif self.how == "sampled":  # the model computes the chances, and how far noise reaches
            x = x * torch.bernoulli(x.sigmoid()) + torch.randn_like(x) * x.exp()
        return self.out(x)


def test_dropout_that_eval_does_not_turn_off() -> None:
    for how in ("untold", "attention", "depth"):
        assert "ND644" in codes(Dropping(how)), how
    for how in ("guarded", "told", "meant", "layer", "attention, gated", "sampled"):
        model = Dropping(how)
        assert "ND644" not in codes(model)
        assert model.training


class Pictures(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.way = way

    def forward(self, ids: torch.Tensor) -> Any:
        pictures = ids[:, :, None, None].expand(-1, -1, 12, 3) / 20
        moved = (
            pictures.reshape(-1, 3, 12, 12) if self.way == "view" else pictures.permute(0, 3, 1, 2)
        )
        return self.out(torch.relu(self.conv(moved)).mean((2, 3)))


def test_pictures_whose_channels_are_moved_by_a_view() -> None:
    assert "ND121" in codes(Pictures("view"))
    assert "ND121" not in codes(Pictures("permute"))
