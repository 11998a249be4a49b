"""Losses, buffers and weights that run away while the loss looks well, and neighbours that grow in
health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, marked


class Net(nn.Module):
    def __init__(self, write: Callable[[Net, torch.Tensor], None] = lambda net, x: None) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 3)
        self.register_buffer("kept", torch.ones(8))
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(self, x)
        out: torch.Tensor = self.head(F.relu(self.body(x)))
        return out


def run(
    loss: Callable[[nn.Module, Any], torch.Tensor],
    write: Callable[[Net, torch.Tensor], None] = lambda net, x: None,
    *,
    steps: int = 60,
    lr: float = 1e-2,
) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    model = Net(write)
    x = torch.randn(steps, 32, 8)
    recipe = Recipe(
        model=model,
        loss_fn=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=lr),
        data=list(zip(x, x[:, :, :3].argmax(2), strict=True)),
    )
    return diagnose(recipe, steps)


def classified(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [one.code for one in findings if one.severity != "info"]


def test_a_buffer_that_grows_and_grows() -> None:
    def doubles(net: Any, x: torch.Tensor) -> None:
        net.kept.add_(0.4 * (net.kept - x.mean(0)))  # away from it

    found = [one for one in run(classified, doubles) if one.code == "ND665"]
    assert found
    assert found[0].culprit.parameter == "kept"
    assert found[0].culprit.location is not None
    assert found[0].culprit.location.line == marked(__file__, "away from it")


def test_a_buffer_that_jumps() -> None:
    def jumps(net: Any, x: torch.Tensor) -> None:
        net.count = getattr(net, "count", 0) + 1
        if net.count == 20:
            net.kept.mul_(1e5)

    assert "ND665" in codes(run(classified, jumps))


def test_buffers_that_grow_in_health() -> None:
    def counts(net: Any, x: torch.Tensor) -> None:
        net.kept.add_(100.0)

    def averages(net: Any, x: torch.Tensor) -> None:
        net.kept.lerp_(1e4 * x.square().mean(0), 0.1)

    for write in (counts, averages):
        assert "ND665" not in codes(run(classified, write))


def test_a_term_without_a_lower_bound() -> None:
    def rewarded(model: Any, batch: Any) -> torch.Tensor:
        fits = classified(model, batch)
        spread = model(batch[0]).square().mean()
        return fits - spread  # the wrong sign

    found = [one for one in run(rewarded, steps=200) if one.code == "ND606"]
    assert found
    assert "without bound" in found[0].title
    assert found[0].culprit.location is not None
    assert found[0].culprit.location.line == marked(__file__, "the wrong sign")


def test_likelihoods_and_rewards_below_zero() -> None:
    def density(model: Any, batch: Any) -> torch.Tensor:
        mean, log_scale, _ = model(batch[0]).unbind(1)
        scale = log_scale.clamp(-3, 3)
        return ((batch[0][:, 0] - mean) ** 2 / (2 * scale.exp() ** 2) + scale).mean()

    def rewarded(model: Any, batch: Any) -> torch.Tensor:
        returns = 2000.0 * (1 + torch.arange(32.0))
        picked = F.log_softmax(model(batch[0]), 1).gather(1, batch[1][:, None])[:, 0]
        return (picked * returns).mean()

    assert "ND606" not in codes(run(density, steps=200))
    assert "ND606" not in codes(run(rewarded, steps=200, lr=1e-3))


def test_terms_that_begin_small() -> None:
    """A weight that is annealed from nearly nothing, and a sum over all elements."""

    def annealed(model: Any, batch: Any) -> torch.Tensor:
        return classified(model, batch) + 1e-12 * model(batch[0]).square().mean()

    def summed(model: Any, batch: Any) -> torch.Tensor:
        return 1e6 * classified(model, batch) + model(batch[0]).square().sum()

    assert "ND666" not in codes(run(annealed))
    assert "ND666" not in codes(run(summed))
