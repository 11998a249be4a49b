"""A loss that a training makes larger is told of; an adversary's, a climber's and a policy's are
not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose, marked

Loss = Callable[[Any, Any], torch.Tensor]


def told(loss: Loss, *, climb: bool = False) -> list[int]:
    """The lines that are told of."""
    torch.manual_seed(0)
    x = torch.randn(12, 32, 8)
    data = list(zip(x, x[..., :4].argmax(-1), strict=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=climb)
    recipe = Recipe(model=model, optimizer=optimizer, loss_fn=loss, data=data)
    found = [finding for finding in diagnose(recipe, 12) if finding.code == "ND641"]
    return [f.culprit.location.line for f in found if f.culprit.location is not None]


def negative(model: Any, batch: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return -loss  # turned


def one_minus(model: Any, batch: Any) -> torch.Tensor:
    return 1 - F.mse_loss(model(batch[0]), batch[0][:, :4])  # subtracted


def each_by_itself(model: Any, batch: Any) -> torch.Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    losses = losses * -0.5  # times a negative number
    return losses.mean()


def likelihood(model: Any, batch: Any) -> torch.Tensor:
    scores = model(batch[0]).log_softmax(1)
    return scores[torch.arange(32), batch[1]].mean()  # no minus


def normalised_score(model: Any, batch: Any) -> torch.Tensor:
    scores = model(batch[0])
    likely = scores[torch.arange(32), batch[1]] - scores.logsumexp(1)
    return likely.sum() / 32  # likely


def test_the_line_that_turns_the_loss() -> None:
    for loss, line in (
        (normalised_score, "likely"),
        (negative, "turned"),
        (one_minus, "subtracted"),
        (each_by_itself, "times a negative number"),
        (likelihood, "no minus"),
    ):
        assert told(loss) == [marked(__file__, line)]


def test_an_optimizer_that_climbs() -> None:
    assert told(negative, climb=True) == []


def negative_entropy(model: Any, batch: Any) -> torch.Tensor:
    scores = model(batch[0]).log_softmax(1)
    return (scores.exp() * scores).sum(1).mean()


def bad_actions(model: Any, batch: Any) -> torch.Tensor:
    """Every reward is negative, and they differ."""
    scores = model(batch[0]).log_softmax(1)
    actions = torch.multinomial(scores.exp(), 1)
    rewards = -1.0 - (actions.squeeze(1) != batch[1]).float()
    return -(scores.gather(1, actions).squeeze(1) * rewards).mean()


def with_an_adversary(model: Any, batch: Any) -> torch.Tensor:
    scores = model(batch[0])
    return F.cross_entropy(scores, batch[1]) - 0.1 * F.mse_loss(scores, batch[0][:, :4])


def normalised_by_hand(model: Any, batch: Any) -> torch.Tensor:
    return -normalised_score(model, batch)


def of_a_mixture(model: Any, batch: Any) -> torch.Tensor:
    """The likelihood of two normal distributions of equal weight."""
    apart = batch[0][:, :4] - model(batch[0])
    return -(-apart.pow(2)).logsumexp(1).mean()


def over_several_samples(model: Any, batch: Any) -> torch.Tensor:
    """A bound by importance weights, one logsumexp less another."""
    scores = model(batch[0])
    return (scores[:, :2].logsumexp(1) - scores.logsumexp(1)).pow(2).mean()


def test_signs_that_are_meant() -> None:
    for loss in (
        negative_entropy,
        bad_actions,
        with_an_adversary,
        normalised_by_hand,
        of_a_mixture,
        over_several_samples,
    ):
        assert told(loss) == []


class Attack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.change, self.victim = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.victim(x + self.change(x).tanh())


def test_a_victim_that_nobody_trains() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 32, 8)
    model = Attack()
    model.victim.requires_grad_(False)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.SGD(model.change.parameters(), lr=0.05),
        loss_fn=lambda model, batch: -F.cross_entropy(model(batch[0]), batch[1]),
        data=list(zip(x, x[..., :4].argmax(-1), strict=True)),
    )
    assert "ND641" not in {finding.code for finding in diagnose(recipe, 12)}


def test_two_terms_of_the_same_predictions_and_targets() -> None:
    def one_has_a_minus_sign(model: Any, batch: Any) -> torch.Tensor:
        scores = model(batch[0])
        plain = F.cross_entropy(scores, batch[1])
        smooth = F.cross_entropy(scores.view(-1, 4), batch[1], label_smoothing=0.1)
        return 0.5 * (plain - smooth)  # against

    def other_targets(model: Any, batch: Any) -> torch.Tensor:
        scores = model(batch[0])
        wrong = (batch[1] + 1) % 4
        return F.cross_entropy(scores, batch[1]) - 0.1 * F.cross_entropy(scores, wrong)

    def both_fall(model: Any, batch: Any) -> torch.Tensor:
        scores = model(batch[0])
        return F.cross_entropy(scores, batch[1]) + F.multi_margin_loss(scores, batch[1])

    assert told(one_has_a_minus_sign) == [marked(__file__, "against")]
    assert told(other_targets) == told(both_fall) == []
