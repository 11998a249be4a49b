"""## What it checks
A scheduler whose first step() came before any optimizer's. torch's own warning about it also
counts.

## Why it matters
The first learning rate of the schedule is never used; a warm-up loses its first step.

## Example
    scheduler.step()
    optimizer.step()

## Fix
Call scheduler.step() after optimizer.step().

## See also
ND609 learning-rate-range
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence


@rule(
    "ND614",
    "scheduler-order",
    "warning",
    "the schedule steps before the optimizer",
    needs=("loop",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    loop = evidence.loop
    if loop is None or not loop.observed:
        return
    for scheduler in loop.schedulers:
        if scheduler.stepped_first and scheduler.steps > 1:
            yield Claim(
                root=("scheduler", "order"),
                specificity=Specificity.SPECIAL,
                stage=Stage.LOOP,
                finding=rule.finding(
                    confidence=confidence(
                        0.7,
                        0.6
                        if any("lr_scheduler.step()" in w.message for w in loop.warnings)
                        else 0.2,
                    ),
                    title=f"{scheduler.type} steps before the optimizer does",
                    explanation="The schedule advances before the first update, so its first "
                    "learning rate is never used and every later one comes a step early.",
                    culprit=Culprit(
                        kind="optimizer", location=scheduler.stepped_at or scheduler.built_at
                    ),
                    phase="optimizer",
                    step=0,
                    evidence=tuple(
                        ("torch warned", w.message[:120])
                        for w in loop.warnings
                        if "lr_scheduler.step()" in w.message
                    ),
                    fixes=(
                        Fix(
                            title="call scheduler.step() after optimizer.step()",
                            confidence="likely",
                        ),
                    ),
                ),
            )
            return
