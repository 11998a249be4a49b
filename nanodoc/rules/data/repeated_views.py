"""## What it checks
A contrastive loss whose pairs are two views of a sample: both views of every pair have the same
scores with all other samples, up to rounding, while different samples have different scores. With
dropout they would differ.

## Why it matters
A view compared with itself is identical for any network. The loss only pushes samples apart, and
the model learns nothing that both views share.

## Example
    view = augment(image)
    return view, view

## Fix
    return augment(image), augment(image)

## See also
ND141 misplaced-positives; Chen et al. 2020, A simple framework for contrastive learning
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim


@rule(
    "ND155",
    "repeated-views",
    "critical",
    "the two views of a sample are identical",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    pairs = inspection.pairs if inspection is not None else None
    if calls is None or pairs is None or not pairs.same:
        return
    call = calls.calls[pairs.call]
    culprit = at_call(call, evidence)
    if pairs.repeated_at is not None:
        culprit = replace(culprit, location=pairs.repeated_at, op=None, module=None)
    yield learning_claim(
        rule,
        location_key(culprit.location) or ("views",),
        title="the two views of each sample are identical",
        explanation=f"The {pairs.samples} samples are paired, and the two of every pair have the "
        "same scores with all others: the network got the same view twice. A view compared "
        "with itself is identical for any network.",
        culprit=culprit,
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 0.4 if pairs.repeated_at is not None else 0.0),
        notes=[
            ("samples", str(pairs.samples)),
            ("compared at", call.site.place if call.site is not None else None),
        ],
        fix="draw a separate augmentation for each view",
        standing=WIRED,
    )
