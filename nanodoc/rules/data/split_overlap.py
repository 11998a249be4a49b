"""## What it checks
The data sets that a script draws from with gradients off, after its training began, against the one
it trains on: samples that are in both, by their numbers where both are parts of one data set, else
by their values (64 samples of the validation; not where samples are alike within one of the data
sets, or hold fewer than 16 different numbers). Not judged where another such data set shares
nothing, or where it is the very data set that is trained on; an info below a share of 5 %, and of a
small part of the training's own samples.

## Why it matters
The model has seen what it is judged by. The validation is better than what comes later, and choices
made by it favour overfitting.

## Example
    train, validation = Subset(data, range(900)), Subset(data, range(800, 1000))

## Fix
    train, validation = random_split(data, [0.9, 0.1])

## See also
ND122 leaked-target
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.items import SplitOverlap
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_A_LOOK = 0.1  # of the training's size: less is a look at how well it fits


@rule(
    "ND128",
    "split-overlap",
    "warning",
    "samples that are trained on and validated on",
    thresholds={"share": Threshold(0.05, "of the validation's samples, that are trained on too")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.items.overlap if evidence.items is not None else None
    if found is None:
        return
    told = f"{found.shared} of {found.looked_at}"
    of = "" if found.by_index else " that were looked at"
    yield learning_claim(
        rule,
        location_key(found.line) or ("data", rule.name),
        severity=rule.severity if _is_telling(found, check.limit(evidence, "share")) else "info",
        title=f"{told} samples of the validation are trained on, too",
        explanation=f"The validation has {found.validation} samples, the training "
        f"{found.training}. Of the validation's{of}, {told} are in both.",
        culprit=Culprit(kind="data", location=found.line or evidence.data_site),
        phase="data",
        step=0,
        # numbers in one data set are certain; of values, each that is equal makes it surer
        weight=0.95 if found.by_index else confidence(0.5, 1 - 0.9**found.shared),
        notes=[("in both", told), ("training", found.training), ("validation", found.validation)],
        fix="split once, before anything else, and use the parts: random_split, train_test_split",
        standing=WIRED,
    )


def _is_telling(found: SplitOverlap, least: float) -> bool:
    share = found.shared / found.looked_at
    return share >= least and (share < 1 or found.validation >= _A_LOOK * found.training)
