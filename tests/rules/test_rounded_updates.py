"""Half-precision weights whose updates are rounded away, and the neighbours whose weights move."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose


class Rounding(torch.optim.AdamW):
    """Moves bfloat16 weights by an update in float32, which `_write` rounds."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [p.detach().float().clone() for p in held]
        wide = [p.detach().float().clone() for p in held]
        for p, w in zip(held, wide, strict=True):
            state = self.state[p]
            m, v, n = state.get("m", 0.0), state.get("v", 0.0), state.get("n", 0) + 1
            g = p.grad.detach().float()
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            state.update(m=m, v=v, n=n)
            w -= (
                self.param_groups[0]["lr"]
                * (m / (1 - 0.9**n))
                / ((v / (1 - 0.95**n)).sqrt() + 1e-8)
            )
        for p, w, b in zip(held, wide, before, strict=True):
            self._write(p, w, b)

    def _write(self, p: torch.Tensor, wide: torch.Tensor, before: torch.Tensor) -> None:
        p.data.copy_(wide)


class Stochastic(Rounding):
    def _write(self, p: torch.Tensor, wide: torch.Tensor, before: torch.Tensor) -> None:
        noise = torch.randint(0, 1 << 16, wide.shape, dtype=torch.int32)
        bits = wide.view(torch.int32) + noise
        p.data.copy_((bits & -(1 << 16)).view(torch.float32))


class Kahan(Rounding):
    def _write(self, p: torch.Tensor, wide: torch.Tensor, before: torch.Tensor) -> None:
        state = self.state[p]
        exact = wide + state.get("rest", 0.0)
        p.data.copy_(exact)
        state["rest"] = exact - p.detach().float()


def run(
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    dtype: torch.dtype = torch.bfloat16,
    lr: float = 3e-4,
    steps: int = 60,
) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(200, 32), nn.Flatten(), nn.Linear(128, 64), nn.ReLU())
    model.append(nn.Linear(64, 4))
    model.to(dtype)
    ids = torch.randint(0, 100, (steps, 32, 4))
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]).float(), batch[1]),
        optimizer=optimizer(model.parameters(), lr=lr),
        data=list(zip(ids, ids.sum(2) % 4, strict=True)),
    )
    return diagnose(recipe, steps)


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [one.code for one in findings if one.severity != "info"]


def test_updates_that_bfloat16_rounds_away() -> None:
    for optimizer in (torch.optim.AdamW, Rounding):
        found = [one for one in run(optimizer) if one.code == "ND605"]
        assert found, optimizer
        assert "rounded away" in found[0].title
        told = dict(found[0].evidence)
        assert float(told["do not move at the end"]) > 0.5
        assert float(told["median update / unit in the last place"]) < 0.5


def test_weights_that_move() -> None:
    for optimizer in (Stochastic, Kahan):
        assert "ND605" not in codes(run(optimizer)), optimizer
    assert "ND605" not in codes(run(dtype=torch.float32))
    assert "ND605" not in codes(run(lr=2e-2))


def test_frozen_weights_and_the_end_of_a_schedule() -> None:
    torch.manual_seed(0)
    base = nn.Linear(64, 64).bfloat16().requires_grad_(False)
    head = nn.Linear(64, 4)
    x = torch.randn(40, 32, 64)

    def loss_fn(model: nn.ModuleList, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model[1](model[0](batch[0].bfloat16()).float()), batch[1])

    model = nn.ModuleList([base, head])
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.AdamW(head.parameters(), lr=1e-2),
        data=list(zip(x, x[:, :, :4].argmax(2), strict=True)),
    )
    assert "ND605" not in codes(diagnose(recipe, 40))


def test_the_run_is_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3).bfloat16()
    plain = copy.deepcopy(model)
    x, y = torch.randn(12, 16, 8).bfloat16(), torch.randint(0, 3, (12, 16))
    for own, watched in ((plain, False), (model, True)):
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
        if watched:
            recipe = Recipe(
                model=own,
                loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]).float(), batch[1]),
                optimizer=optimizer,
                data=list(zip(x, y, strict=True)),
            )
            diagnose(recipe, 12)
            continue
        for one, label in zip(x, y, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(own(one).float(), label).backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_rate_that_comes_to_zero() -> None:
    """A schedule that has ended by the last step tells nothing of the run before."""
    for lr, sick in ((3e-4, True), (2e-2, False)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=60)
        x = torch.randn(60, 32, 16)
        recipe = Recipe(
            model=model,
            loss_fn=lambda model, batch: F.cross_entropy(
                model(batch[0].bfloat16()).float(), batch[1]
            ),
            optimizer=optimizer,
            scheduler=scheduler,
            scheduler_interval="step",
            data=list(zip(x, x[:, :, :4].argmax(2), strict=True)),
        )
        assert ("ND605" in codes(diagnose(recipe, 60))) == sick
