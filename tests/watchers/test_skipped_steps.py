"""What the GradScaler skips: calibration is healthy and said to be, a value that overflows at every
scale is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.config import Config
from nanodoc.loop.history import History
from nanodoc.pipeline.run import run_training
from nanodoc.report.public import public_form
from tests.helpers import diagnose, line_of, run_engine


def driven(scale: float, *, factor: float = 1.0, growth_interval: int = 2000) -> Recipe:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        h = model(batch)
        return ((h * factor) ** 2).float().mean()  # its gradient

    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    return Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[torch.randn(4, 8)],
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        scaler=scaler,
    )


def observed(scale: float, **options: Any) -> Recipe:
    plain = driven(scale, **options)

    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            assert plain.loss_fn is not None
            loss = plain.loss_fn(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Recipe(
        model=plain.model,
        train_step=step,
        data=plain.data,
        optimizer=plain.optimizer,
        scaler=plain.scaler,
    )


def test_calibration_is_healthy_and_counted(tmp_path: Path) -> None:
    for build in (driven, observed):
        history = History(tmp_path / build.__name__)
        outcome = run_engine(
            build(2.0**24),
            steps=20,
            amp_dtype=torch.float16 if build is driven else None,
            history=history,
        )
        history.close()
        facts = outcome.evidence.amp_facts
        assert facts is not None
        assert facts.calibration == len(facts.skipped) == outcome.skipped >= 3
        assert facts.retried
        assert all(skip.finite_unscaled for skip in facts.retried)
        lines = [json.loads(line) for line in history.path.read_text().splitlines()[1:]]
        assert [line["scale"] for line in lines] == [step.scale for step in facts.steps]
        assert lines[0]["scale"] == 2.0**24
        assert lines[0]["skipped"]
        assert lines[0]["skipped_optimizers"] == [0]
        assert lines[0]["found_inf"] == [{"optimizer": 0, "device": "cpu", "found": True}]
        assert lines[-1]["growth_tracker"] == 19 - facts.calibration
        assert not lines[-1]["skipped"]
    assert diagnose(driven(2.0**24), steps=20, amp_dtype=torch.float16) == ()
    assert diagnose(observed(2.0**24), steps=20) == ()


def test_a_gradient_that_overflows_at_every_scale() -> None:
    for build, dtype in ((driven, torch.float16), (observed, None)):
        torch.manual_seed(0)
        sick = build(64.0, factor=3e4)
        (finding,) = diagnose(sick, steps=30, amp_dtype=dtype)
        assert finding.name in ("persistent-overflow", "low-precision-overflow")
        assert finding.culprit.location is not None
        assert finding.culprit.location.line == line_of(__file__, "# its gradient")


def test_isolated_skips_after_growth_are_healthy() -> None:
    recipe = driven(2.0**10, growth_interval=2)
    outcome = run_engine(recipe, steps=60, amp_dtype=torch.float16)
    facts = outcome.evidence.amp_facts
    assert facts is not None
    assert len(facts.skipped) > 3
    assert facts.calibration == 0
    assert diagnose(driven(2.0**10, growth_interval=2), steps=60, amp_dtype=torch.float16) == ()


def test_one_bad_batch_among_good_ones_is_found() -> None:
    """The scaler hides it: the loss is finite, the step is skipped, the scale halved."""

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        h = model(batch).float()
        return torch.sqrt(h * h).mean()  # zero at the sixth batch

    torch.manual_seed(0)
    model = nn.Linear(8, 4, bias=False)
    data = [torch.randn(4, 8) for _ in range(9)]
    data[5][2] = 0.0
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        scaler=scaler,
    )
    (finding,) = diagnose(recipe, steps=9, amp_dtype=torch.float16)
    assert finding.name == "infinite-gradient"
    assert finding.step == 5
    assert finding.culprit.samples == (2,)


def test_state_outside_the_model_is_not_run_twice() -> None:
    """Nothing is run again before the run is over."""
    calls: list[int] = []
    plain = driven(2.0**24)

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        assert plain.loss_fn is not None
        return plain.loss_fn(model, batch)

    seen: list[int] = []
    recipe = Recipe(
        model=plain.model,
        loss_fn=loss_fn,
        data=plain.data,
        optimizer=plain.optimizer,
        scaler=plain.scaler,
    )
    run_engine(
        recipe,
        steps=8,
        amp_dtype=torch.float16,
        progress=lambda step, loss: seen.append(len(calls)),
    )
    assert seen == list(range(1, 9))


def test_accumulation_over_several_calls() -> None:
    """Only every third train_step steps: the others are no steps of the scaler, and their gradients
    are shown unscaled."""
    plain = driven(2.0**18)
    calls = 0

    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        with torch.autocast("cpu", dtype=torch.float16):
            assert plain.loss_fn is not None
            loss = plain.loss_fn(model, batch) / 3
        scaler.scale(loss).backward()
        if calls % 3 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss

    recipe = Recipe(
        model=plain.model,
        train_step=step,
        data=plain.data,
        optimizer=plain.optimizer,
        scaler=plain.scaler,
    )
    outcome = run_engine(recipe, steps=18)
    facts = outcome.evidence.amp_facts
    assert facts is not None
    assert [one.step for one in facts.steps] == [2, 5, 8, 11, 14, 17]
    assert outcome.skipped == len(facts.skipped) == facts.calibration
    finite = [norm for norm in outcome.grad_norms if norm - norm == 0]
    assert finite
    assert max(finite) < 100


def test_the_report_says_that_calibration_is_healthy(tmp_path: Path) -> None:
    from nanodoc.report.terminal import render

    (tmp_path / "train.py").write_text(
        "import torch\ndef build():\n    torch.manual_seed(0)\n    model = torch.nn.Linear(4, 2)\n"
        "    return {'model': model, 'loss_fn': lambda m, b: m(b).float().pow(2).mean(), 'data': "
        "[torch.randn(8, 4)],\n            'optimizer': torch.optim.SGD(model.parameters(), "
        "lr=0.1),\n            'amp': {'dtype': 'float16', 'scaler': True, 'init_scale': 2.0 ** "
        "24}}\n"
    )
    report = run_training(
        f"{tmp_path / 'train.py'}:build", Config(steps=20, device="cpu", snapshot_dir=str(tmp_path))
    )
    text = render(report)
    assert "the loss scale was calibrating, which is healthy" in text
    assert "loss scale     █" in text
    assert public_form(report)["vitals"]["scale_first"] == 2.0**24
