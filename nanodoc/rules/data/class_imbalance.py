"""## What it checks
How often the classes occur among a batch's targets: a ratio of more than 10 : 1, with at least five
targets of the rarest class.

## Why it matters
Always predicting the frequent class already gives a good accuracy, which hides the problem.

## Fix
Class weights or sampling by class.

## See also
ND110 padding-dominated
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import batch_claim
from nanodoc.rules.learning.claims import calls_of

_FEWEST = 5
"""Samples of the rarest class: fewer are chance."""


@rule(
    "ND109",
    "class-imbalance",
    "info",
    "one class far more frequent than another",
    needs=("inspection",),
    thresholds={
        "ratio": Threshold(10.0, "most frequent class to least frequent (SageMaker Debugger)")
    },
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    for call in calls.calls if calls is not None else ():
        labels = call.notes.labels
        if labels is None or labels.counts is None:
            continue
        top, least = labels.counts.top_count, labels.counts.least_count
        if least >= _FEWEST and top / least > check.limit(evidence, "ratio"):
            yield batch_claim(
                rule,
                evidence,
                None,
                title=f"one class is {top / least:.0f} times as frequent as another",
                explanation=f"Of the last batch's {labels.targets} targets, {top} are of class "
                f"{labels.counts.top}.",
                weight=confidence(0.4, 0.4 if least >= 4 * _FEWEST else 0.1),
                notes=[("most frequent : least frequent", round(top / least, 1))],
                fix="use class weights, sampling by class, or a metric other than accuracy",
            )
            return
