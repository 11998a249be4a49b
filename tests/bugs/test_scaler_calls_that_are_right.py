"""Orders of GradScaler calls that are right and were once reported: what the review of this part
found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.checkpoint import checkpoint

from nanodoc import Recipe
from tests.helpers import diagnose, run_engine


class Net(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.checkpointed = (
            nn.Sequential(nn.Linear(6, 16), nn.GELU()),
            nn.Linear(16, 3),
            checkpointed,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointed:
            return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=True))  # type: ignore[no-any-return]
        return self.head(self.body(x))  # type: ignore[no-any-return]


def loss_of(model: Any, batch: Any, x: torch.Tensor | None = None) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return F.cross_entropy(model(batch[0] if x is None else x), batch[1])


def recipe(
    step: Callable[..., Any], *, scale: float = 1024.0, checkpointed: bool = False, **optimizer: Any
) -> Recipe:
    torch.manual_seed(0)
    model = Net(checkpointed=checkpointed)
    data = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]
    made = torch.optim.AdamW(model.parameters(), lr=1e-2, **optimizer)
    return Recipe(
        model=model,
        train_step=step,
        data=data,
        optimizer=made,
        scaler=GradScaler("cpu", init_scale=scale),
    )


def finish(scaler: Any, optimizer: Any) -> None:
    scaler.step(optimizer)
    scaler.update()


def usual(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    finish(scaler, optimizer)
    return loss


def attacked(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    """A gradient for the inputs only, unscaled."""
    x = batch[0].clone().requires_grad_()
    loss_of(model, batch, x).backward(inputs=[x])
    optimizer.zero_grad()
    loss = loss_of(model, batch, (x + 0.01 * x.grad.sign()).detach())
    scaler.scale(loss).backward()
    finish(scaler, optimizer)
    return loss


def cleared_by_hand(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    loss = loss_of(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):
        scaler.step(optimizer)
    scaler.update()
    return loss


def split(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    """The two halves of the model differentiated one after the other."""
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        features = model.body(batch[0])
        leaf = features.detach().requires_grad_()
        loss = F.cross_entropy(model.head(leaf), batch[1])
    scaler.scale(loss).backward()
    features.backward(leaf.grad)
    finish(scaler, optimizer)
    return loss


def limit_with_the_scale(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1 * scaler.get_scale())
    finish(scaler, optimizer)
    return loss


def unscaled_through_the_attribute(
    model: Any, batch: Any, optimizer: Any, scaler: Any
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        parameter.grad.mul_(1 / scaler._scale)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss


def two_scalers(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    head, body = model.optimizers
    first, second = model.scalers
    head.zero_grad()
    body.zero_grad()
    loss = loss_of(model, batch)
    first.scale(loss).backward(inputs=list(model.head.parameters()), retain_graph=True)
    second.scale(loss).backward(inputs=list(model.body.parameters()))
    finish(first, head)
    finish(second, body)
    return loss


def edge(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    torch.autograd.backward(
        torch.autograd.graph.get_gradient_edge(scaler.scale(loss)), torch.ones(())
    )
    finish(scaler, optimizer)
    return loss


@pytest.mark.parametrize(
    "step",
    [attacked, cleared_by_hand, split, limit_with_the_scale, unscaled_through_the_attribute, edge],
)
def test_nothing_is_said(step: Callable[..., Any]) -> None:
    assert [f for f in diagnose(recipe(step), steps=8) if f.severity != "info"] == []


def test_two_scalers_for_two_optimizers() -> None:
    made = recipe(two_scalers)
    model: Any = made.model
    model.optimizers = [
        torch.optim.SGD(model.head.parameters(), lr=0.1),
        torch.optim.SGD(model.body.parameters(), lr=0.1),
    ]
    model.scalers = [GradScaler("cpu", init_scale=256.0), GradScaler("cpu", init_scale=1024.0)]
    both = Recipe(model=model, train_step=two_scalers, data=made.data, optimizer=model.optimizers)
    assert [f for f in diagnose(both, steps=8) if f.severity != "info"] == []
    # looks after the run moved neither
    assert [scaler.state_dict()["_growth_tracker"] for scaler in model.scalers] == [8, 8]


def test_reentrant_checkpointing() -> None:
    """Its recomputation calls backward() inside backward(), on what nobody scales."""
    assert [
        f for f in diagnose(recipe(usual, checkpointed=True), steps=4) if f.severity != "info"
    ] == []


def test_an_optimizer_that_wraps_another() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

    made = recipe(usual)
    wrapped = Recipe(
        model=made.model,
        train_step=usual,
        data=made.data,
        optimizer=Wrapper(made.optimizers[0]),
        scaler=made.scaler,
    )
    assert [f for f in diagnose(wrapped, steps=8) if f.severity != "info"] == []


def test_a_fused_optimizer_skips_by_itself() -> None:
    sick = recipe(usual, scale=2.0**24, fused=True)
    outcome = run_engine(sick, steps=20)
    assert outcome.evidence.trip is None
    facts = outcome.evidence.amp_facts
    assert facts is not None
    assert facts.calibration >= 1
    assert diagnose(recipe(usual, scale=2.0**24, fused=True), steps=20) == ()


def test_a_small_initial_scale_is_no_collapse() -> None:
    assert diagnose(recipe(usual, scale=0.5), steps=4) == ()


def test_embedding_products_have_nothing_to_cast() -> None:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.columns = nn.Embedding(9, 4), nn.Embedding(9, 4)

        def forward(self, pair: torch.Tensor) -> torch.Tensor:
            return (self.rows(pair[:, 0]) * self.columns(pair[:, 1])).sum(1)

    torch.manual_seed(0)
    model = Factors()
    data = [(torch.randint(0, 9, (8, 2)), torch.randn(8))]
    made = Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]).float(), b[1]),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    assert diagnose(made, steps=4, amp_dtype=torch.bfloat16) == ()
