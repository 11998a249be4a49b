"""What float16 rounds to zero and how near it comes to its end, measured against a float64
reference."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.trace.half import HalfLog
from nanodoc.trace.tracer import Tracer
from tests.helpers import diagnose, run_engine


def log_of(run: Any) -> tuple[HalfLog, Any]:
    log = HalfLog()
    tracer = Tracer(nn.Linear(1, 1), [], half=log)
    with tracer:
        run()
    log.finish()
    return log, tracer.finish()


def test_the_share_of_a_product_that_is_flushed() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(400) * 1e-4, torch.randn(400) * 1e-3
    a, b = x.half(), y.half()
    log, trace = log_of(lambda: a * b)
    (op,) = log.ops.values()
    exact = a.double() * b.double()
    flushed = (exact != 0) & ((a * b) == 0)
    assert op.nonzero == int((exact != 0).sum())
    assert op.flushed == int(flushed.sum()) > 0
    assert (op.lost / op.total) ** 0.5 == pytest.approx(
        float(exact[flushed].norm() / exact.norm()), rel=1e-4
    )
    assert op.absmax == pytest.approx(float((a * b).abs().max()))
    assert len(trace.records) == 1  # what is run again is not recorded


def test_exact_zeros_are_not_flushed() -> None:
    a = torch.tensor([0.0, 1.0, -2.0]).half()
    log, _ = log_of(lambda: torch.relu(a))
    (op,) = log.ops.values()
    assert (op.nonzero, op.flushed) == (1, 0)


def test_an_op_in_place_is_compared_with_what_it_overwrote() -> None:
    a = torch.full((8,), 1e-4).half()
    log, _ = log_of(lambda: a.mul_(1e-4))
    (op,) = log.ops.values()
    assert (op.nonzero, op.flushed) == (8, 8)


def test_random_ops_are_not_run_again() -> None:
    a = torch.ones(64).half()
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(a, 0.5)
    found: list[torch.Tensor] = []

    def run() -> None:
        torch.manual_seed(0)
        found.append(torch.nn.functional.dropout(a, 0.5))

    log_of(run)
    assert torch.equal(found[0], expected)


def small_targets(scaler: Any) -> Recipe:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))
    x = torch.randn(64, 8)
    with torch.no_grad():
        y = model(x) + 1e-3 * torch.randn(64, 64)

    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(batch[0]).float() - batch[1]).pow(2).mean() * 1e-2
        (scaler.scale(loss) if scaler else loss).backward()
        scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        return loss

    return Recipe(
        model=model,
        train_step=step,
        data=[(x, y)],
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-5),
        scaler=scaler,
    )


def test_gradients_lost_without_a_scaler() -> None:
    (finding,) = diagnose(small_targets(None), steps=4)
    assert finding.name == "half-without-scaler"
    assert finding.culprit.location is not None
    assert "backward()" in finding.culprit.location.code
    assert dict(finding.evidence)["parameters affected"] >= 1


def test_a_scale_that_is_too_low_is_not_enough() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10_000)
    (finding,) = diagnose(small_targets(scaler), steps=4)
    assert (finding.name, finding.severity) == ("gradient-underflow", "warning")
    assert diagnose(small_targets(torch.amp.GradScaler("cpu")), steps=4) == ()


def test_low_headroom_is_information() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.mul_(2e4)

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).float().tanh().mean()  # type: ignore[no-any-return]

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[torch.full((2, 4), 1.0)],
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
    )
    found = diagnose(recipe, steps=2, amp_dtype=torch.float16)
    (headroom,) = (f for f in found if f.name == "low-headroom")
    assert headroom.severity == "info"


def test_autocast_for_another_device_is_named() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scale = torch.tensor(2.0)
        loss = (model(batch) * scale).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    recipe = Recipe(
        model=model,
        train_step=step,
        data=[torch.randn(4, 4)],
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
    )
    (finding,) = diagnose(recipe, steps=2)
    assert (finding.name, finding.severity) == ("autocast-not-applied", "warning")
    assert finding.culprit.location is not None
    assert "autocast" in finding.culprit.location.code


def test_products_that_escape_autocast_are_named() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)

    def step(model: Any, batch: Any, optimizer: Any, *, all_of_them: bool) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = batch if all_of_them else model(batch).float()
            loss = torch.zeros(4, 4).addmm_(first, model.weight).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    for all_of_them, severity in ((True, "warning"), (False, "info")):
        recipe = Recipe(
            model=model,
            train_step=functools.partial(step, all_of_them=all_of_them),
            data=[torch.randn(4, 4)],
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        )
        found = [one for one in diagnose(recipe, steps=2) if one.name == "autocast-not-applied"]
        assert [one.severity for one in found] == [severity]
        assert found[0].culprit.location is not None
        assert "addmm_(first, model.weight)" in found[0].culprit.location.code


def test_bfloat16_that_is_applied_is_fine() -> None:
    model = nn.Linear(4, 2)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m(b).float().pow(2).mean(),
        data=[torch.randn(4, 4)],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    outcome = run_engine(recipe, steps=2, amp_dtype=torch.bfloat16)
    assert outcome.evidence.amp_facts is not None
    assert any(region.half_ops for region in outcome.evidence.amp_facts.regions)
