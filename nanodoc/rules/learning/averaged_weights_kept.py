"""## What it checks
Scripts that keep an average of the weights by torch_ema's ExponentialMovingAverage or diffusers'
EMAModel: does the training go on, twice and more, with the averaged weights that `copy_to` has put
into the model? They are taken out again by `restore`, or by other weights that the model loads.

## Why it matters
Every look at the averaged model sets the training back to it: the progress of many steps is lost
each time, and the average averages itself.

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
    "averaged weights that the training goes on with",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.asides.averaged if evidence.asides is not None else None
    if found is None or found.times < _FEWEST:
        return
    yield learning_claim(
        rule,
        location_key(found.copied_at) or ("averaged",),
        title="the training goes on with the averaged weights that are copied into the model here",
        explanation=f"{found.times} times {found.kind}.copy_to gave the model its average, and the "
        "next loss was differentiated before anything put the trained weights back.",
        culprit=Culprit(kind="module", location=found.copied_at),
        phase="script",
        weight=confidence(0.7, 1 - 0.7**found.times),
        notes=[("times", found.times)],
        fix="store() before it and restore() behind, or average_parameters() around the look",
        standing=WIRED,
    )
