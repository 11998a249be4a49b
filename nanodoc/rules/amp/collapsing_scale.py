"""## What it checks
The GradScaler skipped more than five steps in a row after it had let steps through, or the loss
scale fell below 1. Skips in the first steps are the scale's calibration: the report counts them,
and they are healthy.

At the end of the run, skipped steps are re-run without the scale. If one is not finite even then,
no scale would help, and the op that makes the bad value is reported instead (ND203, ND301, ND305,
ND407 …).

## Why it matters
A skipped step learns nothing, and at a low scale small gradients are rounded to zero in float16.

## Example
    scaler = torch.amp.GradScaler("cuda", growth_interval=1, growth_factor=16.0)

## Fix
Keep the scaler's defaults; find out what overflows (`nanodoc run --frames`).

## Options
Five in a row: GradScaler's documentation expects a skip once every few hundred or thousand steps.
Below 1: its documentation of update().

## See also
ND407 persistent-overflow, ND305 backward-overflow, ND306 gradient-underflow
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import LossScale
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.amp import AmpFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count

# After the calibration, GradScaler's documentation expects a skip once every few hundred or
# thousand steps.
_STREAK = 5

_AFTER = "Skips in the first steps are the scale's calibration; these came after it."


@rule(
    "ND402",
    "collapsing-scale",
    "critical",
    "step after step is skipped after the scale had calibrated",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if (
        facts is None
        or not facts.steps
        or evidence.births
        or evidence.leaves
        or evidence.failure is not None
    ):
        return
    began, length = (
        facts.longest_streak
        if facts.longest_streak[1]
        else (facts.steps[0].step, facts.calibration)
    )
    lowest = min(facts.steps, key=lambda step: step.scale)
    if not facts.skipped or (
        facts.longest_streak[1] <= _STREAK and not lowest.scale < min(1.0, facts.steps[0].scale)
    ):
        return
    finite = any(skip.finite_unscaled for skip in facts.retried)
    why = (
        "Re-run without the scale, a skipped step is finite: the scale grows faster than it "
        "should, or is set by hand."
        if finite
        else ""
    )
    yield Claim(
        root=("scaler",),
        specificity=Specificity.FALLBACK,
        stage=Stage.PRECISION,
        finding=rule.finding(
            confidence=confidence(
                0.6, 0.5 if length > 2 * _STREAK else 0.2, 0.3 if lowest.scale < 1 else 0.0
            ),
            title=f"the loss scale collapses: {count(length, 'step')} skipped in a row from step "
            f"{began}",
            explanation=f"{facts.story}. {_AFTER if facts.longest_streak[1] else ''} {why}".strip(),
            culprit=Culprit(kind="config", location=facts.asked_at),
            phase="unscale",
            step=began,
            evidence=(
                ("lowest scale", lowest.scale),
                ("at step", lowest.step),
                ("skipped in a row", length),
            ),
            fixes=_fixes(facts, began) if finite else (),
        ),
    )


def _fixes(facts: AmpFacts, began: int) -> tuple[Fix, ...]:
    """What helps where a skipped step is finite without the scale."""
    scales = {step.step: step.scale for step in facts.steps}
    return (
        Fix(
            title="keep growth_factor and growth_interval at their defaults (2.0, 2000), "
            "and don't set the scale by hand",
            confidence="maybe",
        ),
        Fix(
            title="start with a lower loss scale",
            confidence="maybe",
            remedy=LossScale(value=scales.get(began)),
        ),
    )
