"""The order of GradScaler calls in a train_step: each mistake is named at its line, and healthy
orders are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, line_of, marked, run_engine


def forward(model: Any, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return F.cross_entropy(model(batch[0]), batch[1])


def recipe(train_step: Callable[..., Any], **more: Any) -> Recipe:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3))
    x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 48, 8)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Recipe(
        model=model,
        train_step=train_step,
        data=batches,
        optimizer=optimizer,
        scaler=GradScaler("cpu", init_scale=1024.0),
        **more,
    )


def findings(train_step: Callable[..., Any], steps: int = 6) -> tuple[Finding, ...]:
    return tuple(f for f in diagnose(recipe(train_step), steps=steps) if f.severity != "info")


def check(
    train_step: Callable[..., Any], name: str, line: int, severity: str = "critical"
) -> Finding:
    (finding,) = findings(train_step)
    assert (finding.name, finding.severity) == (name, severity)
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line
    assert finding.fixes
    return finding


# -- sick ------------------------------------------------------------------------------------------


def test_clip_grad_norm_before_unscale() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clipped too early
        scaler.step(optimizer)
        scaler.update()
        return loss

    finding = check(step, "clip-before-unscale", marked(__file__, "clipped too early"))
    seen = dict(finding.evidence)
    assert seen["gradient norm, scaled"] > 1.0
    assert seen["loss scale"] == 1024.0
    assert seen["steps"] == 6


def test_clip_grad_value_before_unscale() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)  # values clipped too early
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "clip-before-unscale", marked(__file__, "values clipped too early"))


def test_a_clip_written_by_hand() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad.mul_(torch.clamp(1.0 / norm, max=1.0))  # clipped by hand
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "clip-before-unscale", marked(__file__, "clipped by hand"))


def test_the_optimizer_steps_by_itself() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        optimizer.step()  # on scaled gradients
        return loss

    check(step, "scaler-call-order", marked(__file__, "on scaled gradients"))


def test_a_loss_that_is_not_scaled() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss)
        loss.backward()  # of the unscaled loss
        scaler.step(optimizer)
        scaler.update()
        return loss

    finding = check(step, "scaler-call-order", marked(__file__, "of the unscaled loss"))
    assert "thrown away" in finding.title


def test_one_of_two_micro_batches_is_not_scaled() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss / 2).backward()
        (forward(model, batch) / 2).backward()  # the second one
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "scaler-call-order", marked(__file__, "the second one"))


def test_backward_after_unscale() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)  # too early
        scaler.scale(forward(model, batch) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "scaler-call-order", marked(__file__, "too early"))


def test_update_is_never_called() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)  # and no update
        return loss

    finding = check(step, "scaler-call-order", marked(__file__, "and no update"))
    assert "update() is never called" in finding.title


def test_unscale_twice() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer)  # once more
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "scaler-call-order", marked(__file__, "once more"))


def test_the_loss_is_never_scaled_at_all() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        loss.backward()  # nobody scales it
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "scaler-call-order", marked(__file__, "nobody scales it"))


def test_update_without_a_step_through_the_scaler() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        optimizer.step()  # past the scaler
        scaler.update()
        return loss

    check(step, "scaler-call-order", marked(__file__, "past the scaler"))


def test_a_scaler_made_in_every_step() -> None:
    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        scaler = GradScaler("cpu", init_scale=256.0)  # a new one
        optimizer.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    check(step, "scaler-call-order", marked(__file__, "a new one"), severity="warning")


def test_update_between_backward_and_step() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        first, last = optimizer
        first.zero_grad()
        last.zero_grad()
        loss = forward(model, batch)
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.update()  # in between
        scaler.step(last)
        scaler.update()
        return loss

    sick = recipe(step)
    optimizers = [
        torch.optim.SGD(sick.model[0].parameters(), lr=0.1),
        torch.optim.SGD(sick.model[2].parameters(), lr=0.1),
    ]  # type: ignore[index]
    found = diagnose(
        Recipe(
            model=sick.model,
            train_step=step,
            data=sick.data,
            optimizer=optimizers,
            scaler=sick.scaler,
        ),
        steps=4,
    )
    (finding,) = (f for f in found if f.severity != "info")
    assert (finding.name, finding.severity) == ("scaler-call-order", "warning")
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == marked(__file__, "in between")


# -- healthy ---------------------------------------------------------------------------------------


def in_order(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    optimizer.zero_grad()
    loss = forward(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss


def accumulated(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    optimizer.zero_grad(set_to_none=False)
    loss = forward(model, batch)
    for _ in range(3):
        scaler.scale(forward(model, batch) / 3).backward()
    for parameter in model.parameters():
        parameter.grad /= 1.0  # a constant factor commutes with the scale
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def unscaled_by_hand(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    optimizer.zero_grad()
    loss = forward(model, batch)
    (loss * scaler.get_scale()).backward()
    for parameter in model.parameters():
        parameter.grad.div_(scaler.get_scale())
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss


def logs_and_measures(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    optimizer.zero_grad()
    loss = forward(model, batch)
    scaler.scale(loss).backward()
    _ = [float(p.grad.norm()) / scaler.get_scale() for p in model.parameters()]
    nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # the usual way to log the norm
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def gradient_penalty(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    optimizer.zero_grad()
    loss = forward(model, batch)
    grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    penalty = sum((g.float() / scaler.get_scale()).pow(2).sum() for g in grads)
    scaler.scale(loss + 0.01 * penalty).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def switched_off(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    scaler = GradScaler("cpu", enabled=False)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    scaler.step(optimizer)
    scaler.update()
    return loss


@pytest.mark.parametrize(
    "step",
    [in_order, accumulated, unscaled_by_hand, logs_and_measures, gradient_penalty, switched_off],
)
def test_healthy_orders(step: Callable[..., Any]) -> None:
    assert findings(step, steps=8) == ()


def test_two_models_taking_turns_at_one_scaler() -> None:
    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        d_optimizer, g_optimizer = optimizer
        d_optimizer.zero_grad()
        fake = model["g"](batch)
        with torch.autocast("cpu", dtype=torch.float16):
            d_loss = (
                F.softplus(-model["d"](batch)).mean() + F.softplus(model["d"](fake.detach())).mean()
            )
        scaler.scale(d_loss).backward()
        scaler.step(d_optimizer)
        scaler.update()
        g_optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = F.softplus(-model["d"](fake)).mean()
        # reaches the discriminator too, which clears it in the next step
        scaler.scale(g_loss).backward()
        scaler.step(g_optimizer)
        scaler.update()
        return d_loss

    torch.manual_seed(0)
    model = nn.ModuleDict({"g": nn.Linear(4, 4), "d": nn.Linear(4, 1)})
    optimizers = [
        torch.optim.SGD(model["d"].parameters(), lr=0.1),
        torch.optim.SGD(model["g"].parameters(), lr=0.1),
    ]
    data = [torch.randn(8, 4) for _ in range(3)]
    found = diagnose(
        Recipe(
            model=model,
            train_step=step,
            data=data,
            optimizer=optimizers,
            scaler=GradScaler("cpu", init_scale=1024.0),
        ),
        steps=6,
    )
    assert [f.name for f in found if f.severity != "info"] == []


def test_everything_is_put_back() -> None:
    before = (
        GradScaler.scale,
        GradScaler.step,
        GradScaler.update,
        torch.autograd.backward,
        torch.optim.Optimizer.zero_grad,
    )
    clips = vars(torch.nn.utils.clip_grad).copy()

    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        in_order(model, batch, optimizer, scaler)
        raise ValueError("in the user's code")

    run_engine(recipe(in_order), steps=2)
    run_engine(recipe(step), steps=2)
    assert before == (
        GradScaler.scale,
        GradScaler.step,
        GradScaler.update,
        torch.autograd.backward,
        torch.optim.Optimizer.zero_grad,
    )
    assert vars(torch.nn.utils.clip_grad) == clips
    assert line_of(__file__, 'raise ValueError("in the')
