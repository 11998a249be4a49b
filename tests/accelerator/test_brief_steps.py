"""Steps that are watched by their losses alone, on a device: before there are any, a few steps are
run again, and have to come to the same; whatever goes wrong is told as if all had been watched in
full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc.loop.brief_steps import FULL_AT_FIRST
from tests.accelerator.device import FIRST
from tests.helpers import fresh_nanodoc, line_of
from tests.loop.test_brief_steps import BRIEF, STEPS, loss_fn, recipe, run, told
from tests.script.test_brief_iterations import BRIEF as BRIEF_OF_SCRIPT
from tests.script.test_brief_iterations import brief_steps


def test_most_steps_are_brief_and_change_nothing(tmp_path: Path) -> None:
    ours = recipe(-1, "")
    outcome, brief = run(ours, tmp_path / "a", device=FIRST)
    theirs = recipe(-1, "")
    in_full, none = run(theirs, tmp_path / "b", briefly=False, device=FIRST)
    assert len(brief) > 0.6 * (STEPS - FULL_AT_FIRST)
    assert not none
    assert outcome.losses == in_full.losses
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("odd", ["input", "gradient", "rare"])
def test_what_goes_wrong_is_told_as_ever(odd: str, tmp_path: Path) -> None:
    outcome, brief = run(recipe(BRIEF, odd), tmp_path / "a", device=FIRST)
    in_full, _ = run(recipe(BRIEF, odd), tmp_path / "b", briefly=False, device=FIRST)
    assert BRIEF - 1 in brief or BRIEF - 2 in brief
    if odd != "rare":  # whose harm no loss shows: it is found a little later
        assert told(outcome) == told(in_full)
    assert outcome.evidence.trip is not None
    assert outcome.evidence.trip.step == BRIEF


def test_a_device_that_does_not_compute_the_same_twice(tmp_path: Path) -> None:
    noise = torch.Generator().manual_seed(3)

    class Hidden:
        __slots__ = ()

        def drawn(self) -> torch.Tensor:
            return torch.randn((), generator=noise)

    hidden = Hidden()

    def wavering(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_fn(model, batch) + hidden.drawn().to(FIRST) * 1e-1

    _, brief = run(recipe(-1, "", wavering), tmp_path, device=FIRST)
    assert not brief


ROUNDS = """
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

at, odd = int(sys.argv[1]), sys.argv[2]


class Atomics(torch.autograd.Function):
    # adds in another order each time, as kernels do that use atomics
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + (os.urandom(1)[0] - 127) * 1e-7)


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 8), torch.randint(4, (160,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    into, out = nn.Linear(8, 32), nn.Linear(32, 4)
    model = nn.Sequential(into, nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), out).to("sim")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    n = 0
    for epoch in range(15):
        for x, y in loader:
            optimizer.zero_grad()
            scores = Atomics.apply(model(x.to("sim")))
            loss = F.cross_entropy(scores, y.to("sim"))
            if n == at and odd == "value":
                loss = loss + torch.log(-scores.abs().sum())  # value
            if n == at and odd == "gradient":
                loss = loss + (scores - scores.detach()).pow(2).sum().sqrt()  # gradient
            loss.backward()
            optimizer.step()
            n += 1


main()
"""


@pytest.mark.usefixtures("simulated_environment")
@pytest.mark.parametrize("odd", ["", "value", "gradient"])
def test_a_script_on_a_device_that_rounds_otherwise_each_time(odd: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(ROUNDS)
    output = ("--output", "report.json", "--output-format", "json")
    words = (file.name, "--", str(BRIEF_OF_SCRIPT), odd)
    done = fresh_nanodoc("run", "--quiet", *output, *words, cwd=tmp_path)
    assert done.returncode == (1 if odd else 0), done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["run"]["step_found"].endswith("replay of step 0 the same up to rounding")
    brief = brief_steps(tmp_path)
    if not odd:
        assert len(brief) > 60
        return
    assert BRIEF_OF_SCRIPT - 1 in brief or BRIEF_OF_SCRIPT - 2 in brief
    finding = report["findings"][0]
    assert finding["culprit"]["location"]["line"] == line_of(file, f"# {odd}")
    assert finding["step"] == BRIEF_OF_SCRIPT
