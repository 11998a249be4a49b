"""Experiments: each changes one thing, leaves everything as it was, and their pattern says what
kind of cause it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.cli.common import exit_code
from nanodoc.config import Config
from nanodoc.diagnosis.ranking import rank
from nanodoc.experiments.experiments import KEYS, Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.experiments.verdict import read
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.trials import Experiment, Growth, Pattern, RerunFacts, Stretch
from nanodoc.looks.scheduler import Looks
from nanodoc.loop.engine import Engine
from nanodoc.pipeline.run import run_training
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.rules.catalogue import claims

BAD_ROW = 5


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 8, bias=False), nn.Dropout(0.2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.drop(torch.sqrt(self.linear(x).pow(2).mean(1)))


def sick_at_step_three() -> Recipe:
    """Row 5 of the fourth batch is zero, and the root of zero has an infinite gradient."""
    torch.manual_seed(0)
    model = Pooled()
    data = [torch.randn(8, 4) for _ in range(6)]
    data[3][BAD_ROW] = 0.0
    return Recipe(
        model=model,
        loss_fn=lambda m, b: m(b).mean(),
        data=data,
        optimizer=torch.optim.Adam(model.parameters()),
    )


def ready(
    recipe: Recipe,
    steps: int = 6,
    budget: float = 60.0,
    say: Any = lambda text: None,
    **options: Any,
) -> tuple[ExperimentRun, Evidence]:
    engine = Engine(recipe, torch.device("cpu"), None, steps=steps, **options)
    outcome = engine.run()
    capsule = outcome.start
    assert capsule is not None
    elsewhere = Elsewhere(
        other=lambda: engine.another(capsule), earlier=engine.checkpoints.before(capsule.step)
    )
    step = Step(capsule, elsewhere, engine.checkpoints, indices=outcome.indices)
    return ExperimentRun(
        engine.runner, engine.keeper, engine.replayer, step, Looks(budget), say
    ), outcome.evidence


def everything(recipe: Recipe) -> dict[str, Any]:
    """All that experiments could disturb."""
    model = recipe.model
    found: dict[str, Any] = {name: value.clone() for name, value in model.state_dict().items()}
    for number, state in enumerate(recipe.optimizers[0].state.values()):
        found.update({f"{number}.{key}": value.clone() for key, value in state.items()})
    found.update(
        {
            f"grad {name}": p.grad.clone()
            for name, p in model.named_parameters()
            if p.grad is not None
        }
    )
    return found | {
        "rng": torch.get_rng_state(),
        "calls": torch.tensor(model.calls),
        "dtype": torch.zeros(1),
    }


def test_rows_and_verdict_of_one_bad_sample() -> None:
    differential, evidence = ready(sick_at_step_three())
    evidence = differential.examine(evidence)
    (finding,) = differential.treat(rank(claims(evidence)))
    rows = {row["name"]: row["outcome"] for row in finding.experiments}
    assert rows["another batch (that of step 2)"] == "passes"
    assert rows["the weights of step 0"] == "fails too"
    assert rows["float64"] == "fails too"
    assert rows["eval mode (no dropout, BatchNorm's running statistics)"] == "fails too"
    assert rows[f"sample {BAD_ROW} alone"] == "fails"
    assert rows["the batch without it"] == "passes"
    assert finding.cause == "data"
    assert "and so does another batch" in finding.cause_why
    assert all("seconds" in row for row in finding.experiments[1:])


def test_everything_is_put_back() -> None:
    recipe = sick_at_step_three()
    differential, evidence = ready(recipe)
    before = everything(recipe)
    differential.treat(rank(claims(differential.examine(evidence))))
    after = everything(recipe)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not recipe.model._forward_hooks
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("number", range(1, 12, 2))
def test_ctrl_c_keeps_what_is_known(number: int) -> None:
    """Wherever it comes, the rows so far stay, everything is put back, and the report says that it
    is partial."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == number:
            raise KeyboardInterrupt

    recipe = sick_at_step_three()
    differential, evidence = ready(recipe, say=say)
    before = everything(recipe)
    evidence = differential.examine(evidence)
    findings = differential.treat(rank(claims(evidence)))
    assert differential.looks.interrupted
    assert findings[0].name == "infinite-gradient"
    assert len(said) == number
    assert evidence.pattern is not None
    assert len(evidence.pattern.experiments) <= number
    assert ("further experiments", "interrupted") in differential.looks.not_checked()
    after = everything(recipe)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_no_time_is_said_and_not_hidden() -> None:
    differential, evidence = ready(sick_at_step_three(), budget=0.0)
    pattern = differential.examine(evidence).pattern
    assert pattern is not None
    left = [one for one in pattern.experiments if one.key != "same-again"]
    assert left
    assert all(one.outcome == "not run: the time limit is reached (--budget)" for one in left)
    assert pattern.cause is None


def test_float64_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanodoc.experiments.experiments.free_memory", lambda device: 1000)
    differential, evidence = ready(sick_at_step_three())
    pattern = differential.examine(evidence).pattern
    assert pattern is not None
    (row,) = [one for one in pattern.experiments if one.key == "float64"]
    assert row.outcome.startswith("not run: it needs")
    assert not row.ran


def test_code_that_insists_on_float32_is_said_and_nothing_breaks() -> None:
    recipe = sick_at_step_three()
    weight = torch.randn(8, 4)  # the model's own inputs become float64, this does not
    differential, evidence = ready(
        Recipe(
            model=recipe.model,
            loss_fn=lambda m, b: (m(b) + (b @ weight.T).sum(1)).mean(),
            data=recipe.data,
            optimizer=recipe.optimizer,
        )
    )
    pattern = differential.examine(evidence).pattern
    assert pattern is not None
    (row,) = [one for one in pattern.experiments if one.key == "float64"]
    assert row.outcome.startswith("not run: RuntimeError")
    assert recipe.model.linear.weight.dtype == torch.float32


def test_a_first_step_asks_the_next_batch() -> None:
    recipe = sick_at_step_three()
    data = list(recipe.data)
    differential, evidence = ready(
        Recipe(
            model=recipe.model, loss_fn=recipe.loss_fn, data=data[3:], optimizer=recipe.optimizer
        )
    )
    pattern = differential.examine(evidence).pattern
    assert pattern is not None
    assert [one.name for one in pattern.experiments if one.key == "other-batch"] == [
        "another batch (the next one)"
    ]
    assert pattern.passes("other-batch") is True
    assert pattern.passes("first-weights") is None


def ran(**outcomes: bool) -> tuple[Experiment, ...]:
    return tuple(
        Experiment(key=key.replace("_", "-"), name=key, outcome="passes" if passes else "fails too")
        for key, passes in outcomes.items()
    )


GREW = Growth(loss=40.0, norm=100.0, weights=9.0)
SLOWER = RerunFacts(
    start=0,
    until=9,
    repeated=True,
    stretches=(Stretch(name="×0.1", rate=0.1, clip=None, passes=True, last_loss=1.0),),
)


@pytest.mark.parametrize(
    ("pattern", "guilty", "cause"),
    [
        (Pattern(experiments=ran(same_again=True)), None, "environment"),
        (
            Pattern(
                experiments=ran(same_again=False, other_batch=False, first_weights=True),
                growth=GREW,
                course=SLOWER,
            ),
            None,
            "weights",
        ),
        (
            Pattern(
                experiments=ran(
                    same_again=False, other_batch=False, first_weights=True, float64=True
                ),
                growth=GREW,
            ),
            None,
            "weights",
        ),
        (Pattern(experiments=ran(same_again=False, other_batch=True, float64=False)), True, "data"),
        (
            Pattern(experiments=ran(same_again=False, other_batch=True, float64=False)),
            False,
            "data",
        ),
        (
            Pattern(experiments=ran(same_again=False, other_batch=False, float64=True)),
            False,
            "precision",
        ),
        (
            Pattern(experiments=ran(same_again=False, autocast_off=True, other_batch=True)),
            True,
            "precision",
        ),
        (
            Pattern(
                experiments=ran(
                    same_again=False, other_batch=False, first_weights=False, float64=False
                )
            ),
            False,
            "mathematics",
        ),
        (Pattern(experiments=ran(same_again=False, float64=False)), None, None),
        (
            Pattern(
                experiments=ran(same_again=False, other_batch=True), growth=GREW, course=SLOWER
            ),
            True,
            "data",
        ),
    ],
)
def test_the_pattern_is_read(pattern: Pattern, guilty: bool | None, cause: str | None) -> None:
    assert read(pattern, guilty=guilty)[0] == cause


def run(tmp_path: Path, text: str, progress: Progress | None = None) -> Report:
    (tmp_path / "train.py").write_text(text)
    return run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path)), progress
    )


MICRO = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    data = [torch.randn(6, 4) for _ in range(9)]
    data[4][2] = float("inf")
    return {"model": model, "loss_fn": lambda m, b: m(b).pow(2).mean(), "data": data, "accumulate": 3,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 3}
"""


def test_the_micro_batch_and_its_sample_are_named(tmp_path: Path) -> None:
    finding = run(tmp_path, MICRO).findings[0]
    assert finding.culprit.samples == (2,)
    assert finding.culprit.dataset_indices == (4 * 6 + 2,)
    assert any(row["name"] == "micro-batch 1, sample 2 alone" for row in finding.experiments)
    assert finding.fixes[0].verified is True


LISTED = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    rows = [{"x": torch.randn(2 + i % 3, 3), "id": i} for i in range(12)]
    rows[7]["x"] = torch.zeros(2, 3)
    data = torch.utils.data.DataLoader(rows, batch_size=6, collate_fn=list)
    def loss_fn(model, batch):
        return torch.stack([(model(row["x"]) - model.bias).pow(2).sum().sqrt() for row in batch]).mean()
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 2}
"""


def test_samples_of_a_batch_that_is_a_list(tmp_path: Path) -> None:
    finding = run(tmp_path, LISTED).findings[0]
    assert finding.culprit.samples == (1,)
    assert finding.culprit.dataset_indices == (7,)


def test_progress_says_what_is_tried(tmp_path: Path) -> None:
    said: list[str] = []
    run(tmp_path, MICRO, Progress(say=said.append))
    assert any(text == "trying float64 …" for text in said)
    assert any("samples that fail alone" in text for text in said)


def test_every_experiment_has_a_name_for_the_command_line() -> None:
    differential, _ = ready(sick_at_step_three())
    assert differential.experiments.keys == KEYS


def test_an_interrupted_examination_is_a_partial_report(tmp_path: Path) -> None:
    def say(text: str) -> None:
        if "float64" in text:
            raise KeyboardInterrupt

    report = run(tmp_path, MICRO, Progress(say=say))
    assert report.interrupted
    assert exit_code(report, "critical") == 130
    assert report.findings[0].name == "non-finite-input"
    assert any(row["name"].startswith("another batch") for row in report.findings[0].experiments)


def test_weights_that_must_change_places_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another device a parameter can't just be given other data: its whole contents are
    exchanged, and exchanged back."""
    recipe = sick_at_step_three()
    objects = [id(p) for p in recipe.model.parameters()]
    differential, evidence = ready(recipe)
    monkeypatch.setattr(torch, "_has_compatible_shallow_copy_type", lambda one, other: False)
    before = everything(recipe)
    pattern = differential.examine(evidence).pattern
    assert pattern is not None
    assert pattern.passes("float64") is False
    assert [id(p) for p in recipe.model.parameters()] == objects
    after = everything(recipe)
    assert all(torch.equal(before[key], after[key]) for key in before)
