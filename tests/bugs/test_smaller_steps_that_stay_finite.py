"""Smaller learning rates whose steps stayed finite without learning for certain were told as "fails
too", and the advice named none of them."""

from __future__ import annotations

import pytest

from nanodoc.diagnosis.finding import Fix
from nanodoc.facts.trials import Growth, RerunFacts, Stretch
from nanodoc.report.finding import fix_status
from nanodoc.rules.learning.divergence_report import _fixes


@pytest.mark.parametrize(
    ("passes", "finite", "told"),
    [
        (True, True, "passes"),
        (False, True, "finite, ends at a loss of 9.23"),
        (False, False, "fails too"),
    ],
)
def test_what_is_said_of_a_stretch(passes: bool, finite: bool, told: str) -> None:
    stretch = Stretch(name="x", rate=0.1, clip=None, passes=passes, last_loss=9.234, finite=finite)
    assert stretch.outcome == told


def advice(*ends: float) -> Fix:
    """What is told where the learning rate is 0.01, the loss was 17 at first, and stretches with a
    tenth of the rate, a hundredth and so on stayed finite and ended at these losses."""
    stretches = tuple(
        Stretch(name="", rate=0.1 ** (i + 1), clip=None, passes=False, finite=True, last_loss=end)
        for i, end in enumerate(ends)
    )
    course = RerunFacts(start=0, until=3, repeated=True, stretches=stretches)
    growth = Growth(only_rate=True)
    (fix,) = _fixes(growth, course, 0.01, None, raised=False, first=17.0)
    return fix


def test_the_best_of_them_is_named() -> None:
    fix = advice(36.9, 9.23, 16.8)
    assert fix.title.startswith("lower the learning rate to 0.0001, and check")
    assert fix.verified is False
    assert "end at loss 9.23" in fix_status(fix)


def test_a_loss_that_rises_with_every_rate_may_have_the_wrong_sign() -> None:
    fix = advice(36.9, 20.0, 17.1)
    assert "sign of the loss" in fix.title
    assert fix_status(fix) == "not tried"
