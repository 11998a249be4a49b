"""The line on learning: a loss beside that of the best constant answer, and trainings that end
there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.ranking import rank
from nanodoc.facts.learning import Learning, learning_of
from nanodoc.rules.catalogue import claims
from tests.helpers import run_engine

STEPS = 120


def run(
    loss: Callable[..., torch.Tensor],
    target: Callable[[torch.Tensor], torch.Tensor],
    *,
    outputs: int = 3,
    steps: int = STEPS,
    lr: float = 3e-3,
) -> tuple[Learning | None, list[str]]:
    """The line, and the codes of warnings and worse. Every batch is new."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs))
    x = torch.randn(steps, 64, 8)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: loss(model(batch[0]), batch[1]),
        optimizer=torch.optim.Adam(model.parameters(), lr=lr),
        data=[(one, target(one)) for one in x],
    )
    evidence = run_engine(recipe, steps).evidence
    found = [one.code for one in rank(claims(evidence)) if one.severity != "info"]
    return learning_of(evidence), found


def unequal(x: torch.Tensor) -> torch.Tensor:
    """Labels that no input tells: seven tenths, two tenths, one tenth."""
    return torch.tensor([0] * 7 + [1] * 2 + [2])[torch.randint(0, 10, (len(x),))]


def strangers(x: torch.Tensor) -> torch.Tensor:
    """Those of other samples."""
    return (3 * x[:, :3].sum(1, keepdim=True))[torch.randperm(len(x))]


def test_labels_that_the_inputs_do_not_tell() -> None:
    line, found = run(F.cross_entropy, unequal)
    entropy = -sum(p * math.log(p) for p in (0.7, 0.2, 0.1))
    assert line is not None
    assert line.constant == pytest.approx(entropy, abs=0.08)
    assert "ND607" in found


def test_numbers_that_belong_to_others() -> None:
    line, found = run(F.mse_loss, strangers, outputs=1)
    assert line is not None
    assert line.constant == pytest.approx(27, rel=0.2)
    assert "ND607" in found
    assert "ND607" not in run(F.mse_loss, strangers, outputs=1, steps=40)[1]  # too short


@pytest.mark.parametrize(
    ("loss", "target", "outputs"),
    [
        (F.cross_entropy, lambda x: x[:, :3].argmax(1), 3),
        (F.mse_loss, lambda x: x[:, :2] + x[:, 2:4].abs(), 2),
        (F.l1_loss, lambda x: x[:, :2] + x[:, 2:4].abs(), 2),
        (F.binary_cross_entropy_with_logits, lambda x: (x[:, :2] > 0.5).float(), 2),
    ],
)
def test_what_learns(loss: Any, target: Any, outputs: int) -> None:
    line, found = run(loss, target, outputs=outputs, lr=1e-2)
    assert line is not None
    assert line.value is not None
    assert line.constant is not None
    assert line.value < 0.7 * line.constant
    assert found == []


def test_losses_to_which_no_constant_is_an_answer() -> None:
    def pairs(out: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(out, dim=1), F.normalize(other, dim=1)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    def rewarded(out: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        actions = torch.distributions.Categorical(logits=out)
        taken = actions.sample()
        return -(actions.log_prob(taken) * reward).mean()

    line, found = run(pairs, lambda x: torch.randn(len(x), 3))
    assert line is not None
    assert line.value is None
    assert "ND607" not in found
    assert "ND607" not in run(F.mse_loss, lambda x: torch.ones(len(x), 1), outputs=1)[1]
    line, found = run(rewarded, lambda x: torch.randn(len(x)))
    assert line is not None
    assert line.value is None
    assert line.why
    assert "ND607" not in found


def test_a_loss_with_several_terms_is_not_judged() -> None:
    def both(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(out[:, :1], target) + F.l1_loss(out[:, 1:2], target)

    line, found = run(both, strangers)
    assert line is not None
    assert "largest of 2 terms" in line.text
    assert "ND607" not in found


def test_classes_with_weights_and_smoothed_labels() -> None:
    weights = torch.tensor([1.0, 3.5, 7.0])
    line, _ = run(lambda out, y: F.cross_entropy(out, y, weight=weights), unequal)
    assert line is not None
    assert line.constant == pytest.approx(math.log(3), abs=0.05)
    smooth, _ = run(lambda out, y: F.cross_entropy(out, y, label_smoothing=0.3), unequal)
    plain, _ = run(F.cross_entropy, unequal)
    assert smooth is not None
    assert plain is not None
    assert smooth.constant is not None
    assert plain.constant is not None
    assert smooth.constant > plain.constant
