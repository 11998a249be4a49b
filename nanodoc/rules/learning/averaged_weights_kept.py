"""## What it checks
Scripts that average the weights with torch_ema's ExponentialMovingAverage or diffusers' EMAModel:
at least twice, training continues with the averaged weights that `copy_to` put into the model,
without `restore` or a load of other weights.

## Why it matters
Every evaluation of the averaged model resets training to the average: many steps of progress are
lost each time, and the average averages itself.

## Example
    ema.copy_to(model.parameters())
    validate(model)

## Fix
    with ema.average_parameters():
        validate(model)

## See also
ND643 restored-to-itself, ND653 stale-average
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_FEWEST = 2  # once may be a new beginning


@rule(
    "ND657",
    "averaged-weights-kept",
    "warning",
    "training that continues with averaged weights",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.asides.averaged if evidence.asides is not None else None
    if found is None or found.times < _FEWEST:
        return
    yield learning_claim(
        rule,
        location_key(found.copied_at) or ("averaged",),
        title="training continues with the averaged weights that are copied into the model here",
        explanation=f"{found.times} times {found.kind}.copy_to put the average into the model, "
        "and the next backward ran before anything put the trained weights back.",
        culprit=Culprit(kind="module", location=found.copied_at),
        phase="script",
        weight=confidence(0.7, 1 - 0.7**found.times),
        notes=[("times", found.times)],
        fix="call store() before and restore() after it, or use average_parameters() around the "
        "evaluation",
        standing=WIRED,
    )
