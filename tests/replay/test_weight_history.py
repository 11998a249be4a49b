"""Copies of earlier weights: as often as they are cheap, never more than memory allows, never of a
run that had begun to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.clinic.catalogue import find_patient
from nanodoc.config import Config
from nanodoc.loop.engine import Engine
from nanodoc.pipeline.run import run_training
from nanodoc.replay.rerun import Rerunner
from nanodoc.replay.step import StepRunner
from nanodoc.replay.weight_history import WeightHistory

FOREVER = float("inf")


def recipe(data: Any = None, **more: Any) -> Recipe:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return Recipe(
        model=model,
        loss_fn=lambda m, b: m(b).pow(2).mean(),
        data=data if data is not None else [torch.randn(6, 4) for _ in range(5)],
        optimizer=more.pop("optimizer", None) or torch.optim.Adam(model.parameters(), lr=0.01),
        **more,
    )


def engine(what: Recipe, steps: int, **options: Any) -> Engine:
    return Engine(what, torch.device("cpu"), None, steps=steps, **options)


def kept(checkpoints: WeightHistory) -> list[int]:
    return [
        one.step
        for one in (checkpoints.first, checkpoints.previous, checkpoints.good)
        if one is not None
    ]


def test_every_few_steps_where_that_is_asked_for() -> None:
    run = engine(recipe(), 20, checkpoint_every=6)
    run.run()
    assert kept(run.checkpoints) == [0, 12, 18]


def test_none_where_they_are_switched_off() -> None:
    run = engine(recipe(), 5, checkpoints=False)
    run.run()
    assert kept(run.checkpoints) == []
    assert not run.checkpoints.past
    assert run.checkpoints.note == "switched off (--no-checkpoints)"


def test_a_loss_that_grows_is_no_good_time() -> None:
    """The learning rate is far too high: no copy is taken of what comes of it."""
    model = nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 8)[:, None]
    what = Recipe(
        model=model,
        loss_fn=lambda m, b: (m(b) - 3 * b - 1).pow(2).mean(),
        data=[x],
        optimizer=torch.optim.SGD(model.parameters(), lr=1.6),
    )
    run = engine(what, 20, checkpoint_every=1)
    outcome = run.run()
    grew = next(step for step, loss in enumerate(outcome.losses) if loss > 2 * outcome.losses[0])
    assert max(kept(run.checkpoints)) <= grew


@pytest.mark.parametrize(("free", "expected"), [(10**9, 3), (16_000, 2), (8_000, 1), (100, 0)])
def test_memory_decides_how_many(free: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanodoc.replay.weight_history.free_host_memory", lambda: free)
    run = engine(recipe(), 12, checkpoint_every=2)
    run.run()
    assert len(kept(run.checkpoints)) == expected
    assert bool(run.checkpoints.note) == (expected < 3)


def test_no_more_steps_than_can_be_run_again_in_time() -> None:
    """A brief step opens without being noted: of slow ones fewer may be open."""
    run = engine(recipe(), 60)
    run.run()
    history = run.checkpoints
    assert history.make_room(32) == 32
    history._since, history._step_seconds = 4.5, 0.2
    assert history.make_room(32) == 3
    history._since = 5.0
    assert history.make_room(32) == 0


def test_a_pause_is_not_run_again() -> None:
    """A validation behind a step: the steps are as short as they were."""
    run = engine(recipe(), 60)
    run.run()
    history = run.checkpoints
    history._since, history._step_seconds = 0.0, 0.01
    history._note(1.0, 60.0)
    assert history._since < 0.1
    assert history.make_room(32) == 32
    assert history.reaches_back


def test_a_dear_copy_is_waited_for() -> None:
    run = engine(recipe(), 60)
    run.run()
    history = run.checkpoints
    for cost, since, reaches in (
        (0.01, 5.5, False),
        (0.08, 7.5, True),
        (0.15, 5.5, True),
        (3.0, 10.5, False),
    ):
        history._cost, history._since = cost, since
        assert history.reaches_back == reaches


def test_copies_take_a_hundredth_of_the_time_and_a_fiftieth_where_they_are_dear() -> None:
    """Of 100 seconds, of which the copies so far have taken their hundredth."""
    run = engine(recipe(), 60)
    run.run()
    history = run.checkpoints
    history._elapsed, history._step_seconds = 100.0, 0.1
    for cost, since, due in ((0.08, 7.5, False), (0.08, 8.5, True), (0.9, 10.5, True)):
        history._spent, history._cost, history._since = 1.0, cost, since
        assert history._due(60) == due
    history._spent = 1.2
    assert not history._due(60)


def test_memory_is_asked_for_again_where_the_state_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BFGS keeps one entry, in which more and more steps are remembered."""
    monkeypatch.setattr("nanodoc.replay.weight_history.free_host_memory", lambda: 30_000)
    torch.manual_seed(0)
    model = nn.Linear(4, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1, history_size=100)
    x = torch.randn(32, 4)

    def train_step(model: nn.Module, batch: torch.Tensor, optimizer: Any) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (model(batch) - batch.repeat(1, 2).sin()).pow(2).mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    what = Recipe(model=model, train_step=train_step, data=[x], optimizer=optimizer)
    run = engine(what, 40, checkpoint_every=4)
    run.run()
    last = max(kept(run.checkpoints))
    assert 0 < last < 36
    assert "copies of weights" in run.checkpoints.note


def test_batches_of_the_past_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanodoc.replay.past_batches._MOST_BYTES", 3 * 6 * 4 * 4)
    run = engine(recipe(), 10)
    run.run()
    assert [past.step for past in run.checkpoints.past] == [7, 8, 9]
    assert run.checkpoints.steps_between(0, 9) is None
    assert run.checkpoints.steps_between(7, 9) is not None


def test_shared_memory_of_workers_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of a worker holds a file descriptor open."""
    monkeypatch.setattr("nanodoc.replay.past_batches._MOST_SHARED", 4)
    run = engine(recipe([torch.randn(6, 4).share_memory_() for _ in range(10)]), 10)
    run.run()
    assert len(run.checkpoints.past) == 4


def test_a_batch_that_was_written_to_is_not_run_again() -> None:
    batch = torch.randn(6, 4)

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch.clone()).pow(2).mean()
        batch.add_(0.1)
        return loss

    what = recipe([batch])
    run = engine(
        Recipe(model=what.model, loss_fn=loss_fn, data=[batch], optimizer=what.optimizer), 4
    )
    run.run()
    assert run.checkpoints.steps_between(0, 3) is None


def driven() -> Recipe:
    what = recipe(clip_grad_norm=0.5)
    (optimizer,) = what.optimizers
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    return Recipe(
        **{
            f: getattr(what, f) for f in ("model", "loss_fn", "data", "optimizer", "clip_grad_norm")
        },
        scheduler=scheduler,
        scheduler_interval="step",
    )


def observed() -> Recipe:
    what = recipe()

    def train_step(
        model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Recipe(model=what.model, train_step=train_step, data=what.data, optimizer=what.optimizer)


@pytest.mark.parametrize("make", [driven, observed])
def test_the_past_is_repeated_bitwise_and_put_back(make: Any) -> None:
    what = make()
    run = engine(what, 9, checkpoint_every=3)
    outcome = run.run()
    after = {name: value.clone() for name, value in what.model.state_dict().items()}
    state = {
        k: v.clone()
        for s in what.optimizers[0].state.values()
        for k, v in s.items()
        if isinstance(v, torch.Tensor)
    }
    rate, random = what.optimizers[0].param_groups[0]["lr"], torch.get_rng_state()
    start = run.checkpoints.before(8)[-1]
    steps = run.checkpoints.steps_between(start.step, 8)
    assert steps is not None
    courses = Rerunner(StepRunner(what, torch.device("cpu"), None), run.keeper)
    again = courses.run(start, steps, FOREVER)
    assert again.complete
    assert again.losses == outcome.losses[start.step : 9]
    slower = courses.run(start, steps, FOREVER, rate=0.1, clip=1e-3)
    assert slower.losses[1:] != again.losses[1:]
    assert all(torch.equal(value, after[name]) for name, value in what.model.state_dict().items())
    assert all(
        torch.equal(v, state[k])
        for s in [list(what.optimizers[0].state.values())[-1]]
        for k, v in s.items()
        if isinstance(v, torch.Tensor)
    )
    assert what.optimizers[0].param_groups[0]["lr"] == rate
    assert torch.equal(torch.get_rng_state(), random)


def test_clipping_is_seen_in_the_weights() -> None:
    for make in (driven, observed):
        what = make()
        run = engine(what, 3)
        run.run()
        start = run.checkpoints.first
        steps = run.checkpoints.steps_between(0, 2)
        assert start is not None
        assert steps is not None
        courses = Rerunner(StepRunner(what, torch.device("cpu"), None), run.keeper)
        free, clipped = (courses.run(start, steps, FOREVER, clip=clip) for clip in (None, 1e-9))
        assert free.losses[0] == clipped.losses[0]
        assert free.losses[1] != clipped.losses[1]


def test_time_ends_a_stretch() -> None:
    what = driven()
    run = engine(what, 5)
    run.run()
    assert run.checkpoints.first is not None
    steps = run.checkpoints.steps_between(0, 4)
    assert steps is not None
    course = Rerunner(StepRunner(what, torch.device("cpu"), None), run.keeper).run(
        run.checkpoints.first, steps, deadline=0.0
    )
    assert course.reason == "time"
    assert not course.complete


def test_too_little_memory_is_said_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanodoc.replay.weight_history.free_host_memory", lambda: 100)
    patient = find_patient("half-epsilon")
    report = run_training(
        patient.entrypoint(healthy=True), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    (why,) = [why for what, why in report.not_checked if what == "earlier weights"]
    assert "an eighth of the free memory holds 0" in why
