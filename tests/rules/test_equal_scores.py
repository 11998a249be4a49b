"""Scores that are equal for all classes or samples at the end of a training are told at the op where
they became so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose, marked

Batch = list[torch.Tensor]
CLASSES, STEPS = 5, 14


class OfLabels(nn.Module):
    """Each class looks for its own evidence among the tokens; 0 is padding."""

    def __init__(self, *, sick: bool, by_hand: bool) -> None:
        super().__init__()
        self.sick, self.by_hand = sick, by_hand
        self.words = nn.Embedding(30, 16, padding_idx=0)
        self.asked = nn.Parameter(torch.randn(CLASSES, 16))
        self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        asked = self.asked.expand(len(ids), -1, -1)
        key, value = self.key(x), self.value(x)
        read = (ids == 0 if self.sick else ids != 0)[:, None]
        if self.by_hand:
            scores = asked @ key.transpose(1, 2) / 4
            weights = scores.masked_fill(~read, -1e9).softmax(-1)  # by hand
            out = weights @ value
        else:
            out = F.scaled_dot_product_attention(asked, key, value, attn_mask=read)  # fused
        return self.head(out).squeeze(-1)


def _ids() -> list[Batch]:
    random = torch.Generator().manual_seed(2)
    made = []
    for _ in range(STEPS):
        ids = torch.randint(1, 30, (16, 9), generator=random)
        ids[:, 6:] = 0
        made.append([ids, ids[:, 0] % CLASSES])
    return made


def _rows() -> list[Batch]:
    random = torch.Generator().manual_seed(3)
    drawn = (torch.randn(16, 8, generator=random) for _ in range(STEPS))
    return [[x, x[:, :CLASSES].argmax(1)] for x in drawn]


def run(
    model: nn.Module,
    data: list[Batch],
    loss: Callable[[nn.Module, Batch], torch.Tensor] | None = None,
    lr: float = 1e-2,
    steps: int = STEPS,
) -> list[Any]:
    recipe = Recipe(
        model=model,
        data=data,
        loss_fn=loss or (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])),
        optimizer=torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr),
    )
    return [found for found in diagnose(recipe, steps) if found.severity != "info"]


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_mask_that_lets_only_padding_through(by_hand: bool) -> None:
    torch.manual_seed(0)
    found = run(OfLabels(sick=True, by_hand=by_hand), _ids())[0]
    line = marked(__file__, "by hand" if by_hand else "fused")
    assert (found.name, found.culprit.location.line) == ("equal-scores", line)
    assert f"all {CLASSES} classes" in found.title
    assert run(OfLabels(sick=False, by_hand=by_hand), _ids()) == []


class Plain(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], width: int = 16) -> None:
        super().__init__()
        self.change = change
        self.body, self.head = nn.Linear(8, width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.change(self.body(x)))


def test_what_distinguishes_samples_is_lost() -> None:
    torch.manual_seed(0)
    lost = Plain(lambda h: F.layer_norm(h, (1,)), width=1)  # of one element
    found = run(lost, _rows())[0]
    line = marked(__file__, "of one element")
    assert (found.name, found.culprit.location.line) == ("equal-scores", line)
    assert run(Plain(lambda h: F.layer_norm(h, (16,))), _rows()) == []


def test_a_softmax_over_one_element() -> None:
    def one(h: torch.Tensor) -> torch.Tensor:
        return h.unsqueeze(-1).softmax(-1).squeeze(-1)  # over one

    torch.manual_seed(0)
    names = {f.name: f for f in run(Plain(one), _rows())}
    assert names.keys() <= {"equal-scores", "singleton-softmax", "vanishing-gradients"}
    found = next(iter(names.values()))
    assert found.culprit.location.line == marked(__file__, "over one")


class Gated(nn.Module):
    """A branch that begins with nothing: a head of zeros, a gate of zero, the second factor of an
    adapter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, CLASSES)
        self.gate = nn.Parameter(torch.zeros(()))
        if kind == "head":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.head(torch.tanh(self.body(x)))
        return self.gate * out if self.kind == "gate" else out


@pytest.mark.parametrize("kind", ["head", "gate"])
@pytest.mark.parametrize("lr", [1e-2, 0.0])
def test_what_begins_with_zeros(kind: str, lr: float) -> None:
    torch.manual_seed(0)
    assert "equal-scores" not in {f.name for f in run(Gated(kind), _rows(), lr=lr)}


def test_one_prediction_for_a_whole_sequence() -> None:
    """It is spread over the time steps on purpose: no op made different values equal."""

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        said = model(batch[0])[:, :1].expand(-1, 12)
        target = batch[0].sum(1, keepdim=True) + torch.linspace(-1, 1, 12)
        return F.mse_loss(said, target)

    torch.manual_seed(0)
    found = run(Plain(torch.tanh), _rows(), loss)
    assert "equal-scores" not in {f.name for f in found}


def test_a_value_that_is_a_parameter() -> None:
    """A baseline that reads nothing is the same for all samples."""

    class Baseline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.randn(1, CLASSES))
            self.body = nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.value.repeat(len(x), 1)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        own = F.cross_entropy(model.body(batch[0]), batch[1])  # type: ignore[operator]
        return own + F.mse_loss(model(batch[0]), batch[0][:, :CLASSES])

    torch.manual_seed(0)
    assert "equal-scores" not in {f.name for f in run(Baseline(), _rows(), loss)}


def test_few_steps_tell_nothing() -> None:
    torch.manual_seed(0)
    assert "equal-scores" not in {
        f.name for f in run(OfLabels(sick=True, by_hand=True), _ids(), steps=6)
    }
