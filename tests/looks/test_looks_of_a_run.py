"""What the looks of a whole run do with their budget. A clock that moves with every forward pass
stands for the time, so that a slow machine changes nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nanodoc.config import Config
from nanodoc.diagnosis.ranking import rank
from nanodoc.examination.last_batches import Inspector
from nanodoc.experiments.experiments import Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import StepTrials
from nanodoc.facts.evidence import EXAMINATION, EXPERIMENTS
from nanodoc.looks.scheduler import Look, Looks, Place, Stage
from nanodoc.loop.engine import Engine
from nanodoc.loop.outcome import RunMetrics
from nanodoc.pipeline.after_run import with_joined_reasons
from nanodoc.pipeline.run import run_training
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.rerun import Rerun
from nanodoc.rules.catalogue import claims

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, x):
        return self.last(F.dropout(self.table(x), 0.1))

def build():
    torch.manual_seed(0)
    model = Net()
    words = torch.randint(1, 20, (64, 11))
    data = DataLoader(TensorDataset(words[:, :-1], words[:, 1:]), batch_size=8)
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]).transpose(1, 2), batch[1])
    return {"model": model, "loss_fn": loss_fn, "data": data, "max_steps": 12,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

def sick():
    recipe = build()
    recipe["loss_fn"] = lambda model, batch: (model(batch[0]).sum() * 0).log()
    return recipe
"""


class Clock:
    """A second passes with every forward pass of a model that is `timed`."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now

    def timed(self, model: torch.nn.Module) -> None:
        def passed(*args: Any) -> None:
            self.now += 1

        model.register_forward_pre_hook(passed)


@pytest.fixture
def _a_second_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunMetrics, "usual_seconds", 1.0)


class Tokens(torch.nn.Module):
    """Drops by hand, in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(F.dropout(self.table(x), 0.1))
        return out


def of_tokens(clock: Clock, budget: float) -> Engine:
    torch.manual_seed(0)
    model = Tokens()
    clock.timed(model)
    data = [torch.randint(1, 20, (8, 11)) for _ in range(6)]
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[:, :-1]).transpose(1, 2), b[:, 1:]),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    engine = Engine(recipe, torch.device("cpu"), None, steps=6)
    engine.looks = Looks(budget, clock=clock)
    return engine


def test_a_run_without_a_budget_says_what_was_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    report = run_training("train.py:build", Config(device="cpu", budget=0.0))
    told = dict(report.not_checked)
    assert EXAMINATION in report.checked  # by one look at the last steps, which is always taken
    assert told[EXAMINATION] == (
        "no time was left for dropout in eval mode, targets of other samples, later tokens and "
        "padding (--budget 0s)"
    )
    assert told["cross-sample leak"] == "no time was left (--budget 0s)"
    assert told["samples drawn again"] == "no time was left (--budget 0s)"
    whole = run_training("train.py:build", Config(device="cpu"))
    assert not any("--budget" in why for _, why in whole.not_checked)
    assert whole.vitals.losses == report.vitals.losses


def test_no_time_is_no_reason_for_what_was_not_measured(tmp_path: Path) -> None:
    """It was taken for the reason why the last steps of a run that failed were not re-run."""
    (tmp_path / "train.py").write_text(SCRIPT)
    report = run_training("train.py:sick", Config(device="cpu", budget=0.0))
    told = with_joined_reasons(report).not_checked
    (why,) = [why for what, why in told if what == EXPERIMENTS]
    assert why.startswith("no time was left for another batch, float64, ")
    (joined,) = [what for what, why in told if why == "the run ended in the failure above"]
    assert joined.startswith(EXAMINATION)


@pytest.mark.usefixtures("_a_second_a_step")
def test_a_budget_for_the_cheap_looks_only() -> None:
    """Four runs of the last steps, and one for each of the closer looks; the leak check, which
    takes four more for little, is left out."""
    clock = Clock()
    engine = of_tokens(clock, budget=7.5)
    inspection = engine.run().evidence.inspection
    assert inspection is not None
    assert inspection.batches == 4
    assert inspection.still_dropping
    assert inspection.sequence is not None
    assert engine.looks.not_checked() == [("cross-sample leak", "no time was left (--budget 7.5s)")]
    taken = [one.look.name for one in engine.looks.taken]
    assert taken.index("dropout in eval mode") < taken.index("later tokens and padding")
    estimates = {one.look.name: one.estimate for one in engine.looks.taken}
    assert (estimates["the last steps"], estimates["dropout in eval mode"]) == (4, 1)


def sick_step(clock: Clock, budget: float) -> tuple[ExperimentRun, Any]:
    """The first batch has a zero, whose root has an infinite gradient."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    clock.timed(model)
    data = [torch.zeros(8, 4), torch.randn(8, 4)]
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m(b).pow(2).sqrt().mean(),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    engine = Engine(recipe, torch.device("cpu"), None, steps=2)
    outcome = engine.run()
    capsule = outcome.start
    assert capsule is not None
    step = Step(capsule, Elsewhere(other=lambda: engine.another(capsule)), engine.checkpoints)
    parts = (engine.runner, engine.keeper, engine.replayer)
    looks = Looks(budget, clock=clock)
    looks.begin(step_seconds=1.0)
    return ExperimentRun(*parts, step, looks, lambda text: None), outcome.evidence


def test_what_no_time_was_left_for_is_named_by_experiment() -> None:
    differential, evidence = sick_step(Clock(), budget=2.5)
    evidence = differential.examine(evidence)
    outcomes = {one.key: one.outcome for one in evidence.pattern.experiments}
    assert outcomes["same-again"] == "fails too"
    assert outcomes["other-batch"] == "passes"
    assert outcomes["float64"] == "not run: the time limit is reached (--budget)"
    findings = differential.treat(rank(claims(evidence)))
    assert not any(fix.verified for finding in findings for fix in finding.fixes)
    why = "no time was left for float64, fixes (--budget 2.5s)"
    assert differential.looks.not_checked() == [(EXPERIMENTS, why)]


def test_a_stretch_that_does_not_fit_is_not_begun() -> None:
    """It ran until its share of the time was over, and what it had found was thrown away."""
    clock = Clock()
    engine = of_tokens(clock, budget=60)
    engine.run()
    looks = Looks(4, clock=clock)
    looks.begin(step_seconds=1.0)
    trials = StepTrials(engine.runner, engine.keeper, engine.replayer, looks)
    start, steps = engine.checkpoints.first, engine.checkpoints.steps_between(0, 5)
    assert start is not None
    assert steps is not None
    courses: list[Rerun | None] = []
    before = clock.now

    def work(place: Place) -> None:
        courses.append(trials.course(start, steps, 0.5, "learning rate × 0.1", rate=0.1))

    look = {"group": EXPERIMENTS, "stage": Stage.COURSE, "runs": 2 * len(steps), "first": 1}
    looks.add(Look(name="smaller learning rates", work=work, **look))
    looks.run()
    assert courses == [None]
    assert clock.now == before
    why = "no time was left for learning rate × 0.1 (--budget 4s)"
    assert looks.not_checked() == [(EXPERIMENTS, why)]


def test_a_look_that_breaks_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Inspector, *args: object) -> None:
        raise KeyError("broken on purpose")

    engine = of_tokens(Clock(), budget=60)
    monkeypatch.setattr(Inspector, "inspect", broken)
    evidence = engine.run().evidence
    assert evidence.inspection is None
    assert evidence.graph is not None
    assert evidence.stats is not None
    why = "stopped by an error of nanodoc's own: KeyError: 'broken on purpose' (the last steps)"
    assert engine.looks.not_checked() == [(EXAMINATION, why)]


def test_an_interrupted_look_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Inspector, *args: object) -> None:
        raise KeyboardInterrupt

    engine = of_tokens(Clock(), budget=60)
    monkeypatch.setattr(Inspector, "inspect", interrupted)
    outcome = engine.run()
    assert outcome.interrupted
    assert len(outcome.losses) == 6
    assert engine.looks.not_checked() == [("the remaining checks", "interrupted")]
