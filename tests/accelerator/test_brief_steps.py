"""Steps that are watched by their losses alone, on a device: before there are any, a few steps are
run again, and have to come to the same; whatever goes wrong is told as if all had been watched in
full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc.loop.brief_steps import FULL_AT_FIRST
from tests.accelerator.device import FIRST
from tests.loop.test_brief_steps import BRIEF, STEPS, loss_fn, recipe, run, told


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
        return loss_fn(model, batch) + hidden.drawn().to(FIRST) * 1e-3

    _, brief = run(recipe(-1, "", wavering), tmp_path, device=FIRST)
    assert not brief
