"""A long training of small steps is watched in full one step in sixteen, later fewer. Whatever goes wrong in one
of the others is told as if it had been watched in full, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.ranking import rank
from nanodoc.loop.brief_steps import FULL_AT_FIRST, is_full
from nanodoc.loop.engine import Engine
from nanodoc.loop.history import History
from nanodoc.loop.outcome import Outcome
from nanodoc.rules.catalogue import claims
from tests.helpers import line_of

STEPS = 140
BRIEF = next(step for step in range(90, STEPS) if not is_full(step) and not is_full(step + 1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
        )
        self.rare = nn.Embedding(3, 4)


class Batches:
    """(x, y, what the square root is taken of, row of the rare table), for ever; the batch of one
    step is `odd`."""

    def __init__(self, at: int, odd: str) -> None:
        self.at, self.odd = at, odd
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(10, 16, 8, generator=generator)
        self.y = torch.randint(4, (10, 16), generator=generator)

    def __iter__(self) -> Iterator[Any]:
        step = 0
        while True:
            odd = self.odd if step == self.at else ""
            x = self.x[step % 10]
            if odd == "input":
                x = x.clone()
                x[3, 2] = float("nan")
            root = torch.tensor(0.0 if odd in ("gradient", "rare") else 1.0)
            row = torch.tensor({"index": 99, "rare": 2}.get(odd, step % 2))
            yield x, self.y[step % 10], root, row
            step += 1


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y, root, row = batch
    out = model.body(x)
    rare = model.rare(row)
    loss = nn.functional.cross_entropy(out, y)
    if row == 2:
        return loss + (rare.pow(2).sum() * root).sqrt()  # of nothing: its slope has no end
    return loss + (out.pow(2).sum() * 0 + root).sqrt() + rare.sum() * 1e-3


def recipe(at: int, odd: str, function: Any = loss_fn) -> Recipe:
    torch.manual_seed(0)
    model = Net()
    return Recipe(
        model=model,
        data=Batches(at, odd),
        loss_fn=function,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )


def run(
    what: Recipe, folder: Path, *, briefly: bool = True, device: torch.device | None = None
) -> tuple[Outcome, list[int]]:
    """(the outcome, the steps that were watched by their losses alone)"""
    history = History(folder)
    device = device or torch.device("cpu")
    engine = Engine(what, device, None, steps=STEPS, history=history)
    if not briefly:
        engine.brief.give_up()
    outcome = engine.run()
    history.close()
    lines = [json.loads(line) for line in history.path.read_text().splitlines()[1:]]
    return outcome, [line["step"] for line in lines if "grad_norm" not in line]


def told(outcome: Outcome) -> tuple[Any, ...]:
    evidence = outcome.evidence
    finding = rank(claims(evidence))[0]
    where = finding.culprit.location
    return (
        finding.code,
        where.line if where else None,
        repr(evidence.trip),
        evidence.failure_step,
        evidence.reproduced,
        outcome.steps_run,
        outcome.losses[:-1],
        outcome.indices,
        finding.confidence,
    )


def test_most_steps_are_brief_and_change_nothing(tmp_path: Path) -> None:
    ours = recipe(-1, "")
    outcome, brief = run(ours, tmp_path / "a")
    theirs = recipe(-1, "")
    in_full, none = run(theirs, tmp_path / "b", briefly=False)
    assert len(brief) > 0.8 * (STEPS - FULL_AT_FIRST)
    assert not none
    assert outcome.losses == in_full.losses
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not rank(claims(outcome.evidence))


@pytest.mark.parametrize("at", [FULL_AT_FIRST + 4, BRIEF, STEPS - 1])
@pytest.mark.parametrize("odd", ["input", "gradient", "index"])
def test_what_goes_wrong_is_told_as_ever(odd: str, at: int, tmp_path: Path) -> None:
    outcome, brief = run(recipe(at, odd), tmp_path / "a")
    in_full, _ = run(recipe(at, odd), tmp_path / "b", briefly=False)
    assert at - 1 in brief or at - 2 in brief
    assert told(outcome) == told(in_full)


def test_a_gradient_whose_harm_no_later_loss_shows(tmp_path: Path) -> None:
    """The row of the table that is NaN from then on is not used any more."""
    outcome, brief = run(recipe(BRIEF, "rare"), tmp_path)
    assert BRIEF in brief
    assert all(map(torch.isfinite, map(torch.tensor, outcome.losses[:-1])))
    assert outcome.evidence.trip is not None
    assert outcome.evidence.trip.step == BRIEF
    finding = rank(claims(outcome.evidence))[0]
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "its slope has no end")


def test_steps_that_cannot_be_run_again_are_watched_in_full(tmp_path: Path) -> None:
    """What the loss depends on lies where nobody can put it back."""
    source = iter(torch.randn(10_000, generator=torch.Generator().manual_seed(3)).tolist())

    def drifting(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_fn(model, batch) + next(source)

    outcome, brief = run(recipe(BRIEF, "rare", drifting), tmp_path)
    assert not brief
    assert outcome.evidence.trip is not None
    assert outcome.evidence.trip.step == BRIEF


class Breaking(torch.optim.SGD):
    """Writes NaN into one weight at its step BRIEF."""

    name = ""

    def step(self, closure: Any = None) -> Any:
        out = super().step(closure)
        group = self.param_groups[0]
        group["count"] = group.get("count", -1) + 1
        if group["count"] == BRIEF:
            found = dict(self.model.named_parameters())[self.name]  # type: ignore[attr-defined]
            found.data[-1] = float("nan")
        return out


@pytest.mark.parametrize("name", ["body.0.weight", "rare.weight"])
def test_an_optimizer_that_breaks_weights(name: str, tmp_path: Path) -> None:
    """In the first layer, which the next loss shows, and in a row of the table that none shows:
    that ends the run at the next copy of the weights."""

    def broken() -> Recipe:
        what = recipe(-1, "")
        optimizer = Breaking(what.model.parameters(), lr=1e-3)
        optimizer.model, optimizer.name = what.model, name  # type: ignore[attr-defined]
        return Recipe(model=what.model, data=what.data, loss_fn=loss_fn, optimizer=optimizer)

    outcome, brief = run(broken(), tmp_path / "a")
    in_full, _ = run(broken(), tmp_path / "b", briefly=False)
    assert BRIEF in brief
    (found,), (known,) = outcome.evidence.optimizers, in_full.evidence.optimizers
    assert (found.type, found.parameters) == (known.type, known.parameters) == ("Breaking", (name,))
    if name == "body.0.weight":
        assert told(outcome) == told(in_full)


@pytest.mark.parametrize("odd", ["rare", "gradient"])
def test_steps_that_do_not_come_to_the_same_are_not_blamed(odd: str, tmp_path: Path) -> None:
    """As long as nobody looks, they seem to be steps that can be run again."""
    drift = torch.Generator().manual_seed(3)

    class Hidden:
        __slots__ = ()

        def drawn(self) -> torch.Tensor:
            return torch.randn((), generator=drift)

    hidden = Hidden()

    def drifting(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_fn(model, batch) + hidden.drawn()

    outcome, brief = run(recipe(BRIEF, odd, drifting), tmp_path)
    assert BRIEF in brief
    assert outcome.evidence.reproduced == "not_run"
    assert "re-running them gives different results" in outcome.evidence.reproduction_note
    assert not outcome.evidence.births
    assert not outcome.evidence.optimizers


def test_a_model_of_large_steps_is_watched_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanodoc.loop.brief_steps._SMALL_STEP", 0.0)
    assert not run(recipe(-1, ""), tmp_path)[1]


def test_no_weights_are_kept_for_the_trial_of_a_train_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are all watched in full."""
    asked: list[int] = []
    keep_next = "nanodoc.replay.weight_history.WeightHistory.keep_next"
    monkeypatch.setattr(keep_next, lambda history: asked.append(1))

    def step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    made = recipe(-1, "")
    own = Recipe(model=made.model, data=made.data, train_step=step, optimizer=made.optimizer)
    assert not run(own, tmp_path)[1]
    assert not asked
