"""## What it checks
Samples that are both in the training data and in a data set that the script reads with gradients
off after training began. They are compared by index if both are parts of one data set, else by
value (64 samples of the validation; not if samples repeat within one of the data sets, or hold
fewer than 16 different numbers). Not reported if a second such data set shares nothing, or if it is
the training data set itself; an info below a share of 5 %, and for a small part of the training
samples.

## Why it matters
The model has already seen the validation samples. The validation is better than reality, and
decisions based on it favour overfitting.

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
    thresholds={"share": Threshold(0.05, "of the validation's samples that are also trained on")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.items.overlap if evidence.items is not None else None
    if found is None:
        return
    told = f"{found.shared} of {found.looked_at}"
    of = "" if found.by_index else " examined"
    yield learning_claim(
        rule,
        location_key(found.line) or ("data", rule.name),
        severity=rule.severity if _is_telling(found, check.limit(evidence, "share")) else "info",
        title=f"{told} samples of the validation are also trained on",
        explanation=f"The validation has {found.validation} samples, the training "
        f"{found.training}. Of the validation's{of} samples, {told} are in both.",
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
