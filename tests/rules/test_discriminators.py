"""A generator and who judges it: against each other, or with each other by a slip."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND650"
Loss = Callable[[torch.Tensor, float], torch.Tensor]


def codes(
    loss: Loss, real: float, fake: float, wanted: float, foreach: bool | None = None
) -> set[str]:
    """`loss(judgement, target)`; a target of -1 or 1 says which way a mean is moved."""
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    model = nn.ModuleDict({"maker": maker, "judge": judge})
    first = torch.optim.RMSprop(judge.parameters(), 1e-3, foreach=foreach)
    second = torch.optim.RMSprop(maker.parameters(), 1e-3, foreach=foreach)

    def train_step(model: nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
        made = model["maker"](torch.randn(len(batch), 4))
        first.zero_grad()
        of_real, of_made = model["judge"](batch), model["judge"](made.detach())
        total = loss(of_real, real) + loss(of_made, fake)
        total.backward()
        first.step()
        second.zero_grad()
        loss(model["judge"](made), wanted).backward()
        second.step()
        return total

    recipe = Recipe(
        model=model,
        optimizer=[first, second],
        train_step=train_step,
        data=list(torch.randn(12, 16, 2) + 3),
    )
    return {finding.code for finding in diagnose(recipe, 12)}


def cross_entropy(judgement: torch.Tensor, target: float) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(judgement, torch.full_like(judgement, target))


def of_probabilities(judgement: torch.Tensor, target: float) -> torch.Tensor:
    return F.binary_cross_entropy(judgement.sigmoid(), torch.full_like(judgement, target))


def squared(judgement: torch.Tensor, target: float) -> torch.Tensor:
    return F.mse_loss(judgement, torch.full_like(judgement, target))


def mean(judgement: torch.Tensor, target: float) -> torch.Tensor:
    return target * judgement.mean()


def negated(judgement: torch.Tensor, target: float) -> torch.Tensor:
    return -mean(judgement, -target) if target > 0 else mean(judgement, target)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (cross_entropy, (1.0, 0.0, 1.0)),
        (cross_entropy, (0.9, 0.1, 1.0)),
        (cross_entropy, (0.0, 1.0, 0.0)),  # labels the other way round
        (of_probabilities, (1.0, 0.0, 1.0)),
        (squared, (1.0, 0.0, 1.0)),
        (squared, (1.0, -1.0, 0.0)),  # least squares GAN with three constants
        (mean, (-1.0, 1.0, -1.0)),
        (negated, (-1.0, 1.0, -1.0)),
    ],
)
def test_a_generator_against_its_judge(loss: Loss, targets: tuple[float, float, float]) -> None:
    assert CODE not in codes(loss, *targets)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (cross_entropy, (1.0, 0.0, 0.0)),
        (cross_entropy, (0.9, 0.1, 0.0)),
        (of_probabilities, (1.0, 0.0, 0.0)),
        (squared, (1.0, 0.0, 0.0)),
        (mean, (-1.0, 1.0, 1.0)),
        (negated, (-1.0, 1.0, 1.0)),
    ],
)
def test_a_generator_with_its_judge(loss: Loss, targets: tuple[float, float, float]) -> None:
    assert CODE in codes(loss, *targets)


@pytest.mark.parametrize(("wanted", "found"), [(0.0, True), (1.0, False)])
def test_all_parameters_of_an_optimizer_are_updated_by_one_call(wanted: float, found: bool) -> None:
    """As on every accelerator."""
    assert (CODE in codes(cross_entropy, 1.0, 0.0, wanted, foreach=True)) is found


def test_a_probe_beside_a_head() -> None:
    """Two heads: one learns from detached features, and both have labels of their own."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.probe = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def loss_fn(model: Model, batch: torch.Tensor) -> torch.Tensor:
        features = model.body(batch).relu()
        label = (batch[:, :1] > 0).float()
        head = F.binary_cross_entropy_with_logits(model.head(features), label)
        return head + F.binary_cross_entropy_with_logits(model.probe(features.detach()), label)

    model = Model()
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        data=list(torch.randn(12, 16, 4)),
    )
    assert CODE not in {finding.code for finding in diagnose(recipe, 12)}


def test_a_domain_that_is_confused() -> None:
    """The features are to hide their domain: the sign of the second loss is the opposite one."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.domain = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def loss_fn(model: Model, batch: torch.Tensor) -> torch.Tensor:
        features = model.body(batch).relu()
        there = torch.ones(len(batch), 1)
        judged = F.binary_cross_entropy_with_logits(model.domain(features.detach()), there)
        hidden = F.binary_cross_entropy_with_logits(model.domain(features), there)
        labels = (batch[:, 0] > 0).long()
        return F.cross_entropy(model.head(features), labels) + judged - 0.1 * hidden

    model = Model()
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        data=list(torch.randn(12, 16, 4)),
    )
    assert CODE not in {finding.code for finding in diagnose(recipe, 12)}
