"""The guilty samples are found by experiment: they fail alone, and the others pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nanodoc import Recipe
from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.experiments import call_site
from nanodoc.experiments.samples import GuiltySamples, Parts, rows_of
from nanodoc.experiments.templates import function_of
from nanodoc.experiments.trial import StepTrials, fails
from nanodoc.looks.scheduler import Looks
from nanodoc.loop.engine import Engine
from nanodoc.pipeline.run import run_training

TRAIN = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear{norm} = nn.Linear(4, 6){extra}

    def forward(self, batch):
        h = {call}
        weight = batch["weight"] / batch["count"][0]
        pooled = torch.stack([item.sum() for item in batch["ragged"]])
        return torch.sqrt((h * h).sum(0)) + 0 * weight.sum() + 0 * pooled.sum()


def build():
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(16, 4)
    batch = {{"x": x, "weight": torch.ones(16), "count": torch.ones(1), "ragged": [torch.ones(i + 1) for i in range(16)]}}
    batch["x"][{bad}] = {value}
    return {{"model": model, "loss_fn": lambda model, batch: model(batch).mean(), "data": [batch], "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 1}}
"""


def first(tmp_path: Path, *, bad: list[int], value: str, norm: bool = False) -> Finding:
    text = TRAIN.format(
        bad=bad,
        value=value,
        norm=", self.norm" if norm else "",
        extra=", nn.BatchNorm1d(6)" if norm else "",
        call="self.norm(self.linear(batch['x']))" if norm else "self.linear(batch['x'])",
    )
    (tmp_path / "train.py").write_text(text)
    return run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    ).findings[0]


def test_samples_that_the_failing_op_cannot_tell(tmp_path: Path) -> None:
    """The sum over the batch overflows; its output has no rows of the batch."""
    finding = first(tmp_path, bad=[3, 11], value="3e20")
    assert finding.culprit.samples == (3, 11)
    rows = {row["name"]: row["outcome"] for row in finding.experiments}
    assert rows["samples 3, 11 alone"] == "fails"
    assert rows["the batch without them"] == "passes"


def test_a_batch_that_is_bad_as_a_whole_has_no_guilty_sample(tmp_path: Path) -> None:
    finding = first(tmp_path, bad=list(range(16)), value="3e20")
    assert not any("alone" in row["name"] for row in finding.experiments)


def test_batch_norm_is_not_taken_apart(tmp_path: Path) -> None:
    finding = first(tmp_path, bad=[3], value="float('inf')", norm=True)
    assert not any("alone" in str(row["name"]) for row in finding.experiments)


@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.integers(0, n - 1), min_size=1, max_size=6, unique=True)
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_every_field_keeps_the_same_rows(drawn: tuple[int, list[int]]) -> None:
    size, rows = drawn
    other = torch.arange(size + 1)
    batch: dict[str, Any] = {
        "x": torch.arange(size),
        "pair": (torch.arange(size) * 10, ["a"] * size),
        "names": [f"n{i}" for i in range(size)],
        "other": other,
    }
    part = rows_of(batch, size, rows)
    assert part["x"].tolist() == rows
    assert part["pair"][0].tolist() == [10 * row for row in rows]
    assert part["names"] == [f"n{row}" for row in rows]
    assert len(part["pair"][1]) == len(rows)
    assert part["other"] is other


def test_a_batch_of_as_many_fields_as_samples_is_no_list_of_samples() -> None:
    fields = [torch.arange(2), torch.arange(2) * 10]
    assert [t.tolist() for t in rows_of(fields, 2, [1])] == [[1], [10]]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{x} + 1e-12", 1e-12),
        ("{x}.clamp_min(1e-3)", 1e-3),
        ("{x}.clamp(-1 + 1e-6, 1 - 1e-6)", 0.0),
    ],
)
def test_a_guard_is_what_its_text_says(template: str, expected: float) -> None:
    assert float(function_of(template)(torch.zeros(()))) == pytest.approx(expected)


@pytest.mark.parametrize(
    "template",
    ["__import__('os').system('true')", "{x}.exp()", "{x} + y", "{x}.clamp_min(open('f'))"],
)
def test_other_text_is_no_guard(template: str) -> None:
    with pytest.raises(ValueError, match=r"not (an expression|part of a fix)"):
        function_of(template)


def test_an_argument_is_guarded_at_its_own_call_only() -> None:
    from tests.experiments.test_patches import span_of

    x = torch.zeros(2)

    def program() -> list[float]:
        return [float(v) for v in (torch.log(x)[0], torch.log(x)[1], (1.0 / x)[0], x.log()[0])]

    where = span_of(program, "log", 1)
    with call_site.argument_at(where, "log", 0, "{x} + 1.0", call_site.Applied()):
        assert program() == [float("-inf"), 0.0, float("inf"), float("-inf")]
    where = span_of(program, "reciprocal")
    with call_site.argument_at(where, "reciprocal", 0, "{x} + 1.0", call_site.Applied()):
        assert program()[2] == 1.0


def test_log_softmax_in_place_of_log_of_softmax() -> None:
    logits = torch.tensor([[0.0, -300.0]], requires_grad=True)

    def program() -> torch.Tensor:
        probabilities = nn.functional.softmax(logits, dim=-1)
        return torch.log(probabilities)

    from tests.experiments.test_patches import span_of

    where = span_of(program, "log")
    assert torch.isinf(program()).any()
    applied = call_site.Applied()
    with call_site.log_softmax_at(where, applied):
        out = program()
    assert applied.yes
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert torch.isfinite(logits.grad).all()  # type: ignore[arg-type]


class Roots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=False)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        x = batch["x"] if isinstance(batch, dict) else torch.stack([item["x"][0] for item in batch])
        return torch.sqrt(self.linear(x).pow(2).sum(1)).mean()


@given(
    st.integers(3, 14).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.integers(0, n - 1), min_size=1, max_size=(n - 1) // 2, unique=True),
        )
    ),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_planted_samples_are_found(drawn: tuple[int, list[int]], as_list: bool) -> None:
    """k zero rows in a random batch, stacked or a list of ragged samples: exactly these are
    named."""
    size, bad = drawn
    torch.manual_seed(size)
    x = torch.randn(size, 3)
    x[bad] = 0.0
    batch: Any = (
        [{"x": x[i : i + 1].repeat(1 + i % 2, 1)} for i in range(size)]
        if as_list
        else {"x": x, "ids": list(range(size))}
    )
    model = Roots()
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m(b),
        data=[batch],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    engine = Engine(recipe, torch.device("cpu"), None, steps=1)
    capsule = engine.run().start
    assert capsule is not None
    trials = StepTrials(engine.runner, engine.keeper, engine.replayer, Looks())
    search = GuiltySamples(
        Parts(capsule), lambda rows: fails(trials.outcome(rows)), Looks().deadline
    )
    assert search.search() == tuple(sorted(bad))
