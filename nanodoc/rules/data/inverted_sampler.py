"""## What it checks
A `WeightedRandomSampler` with one weight per class that gives the most frequent class of an
imbalanced data set the greater weight, so that the drawn samples are at least half as imbalanced
again. Up to 1 024 samples are drawn for this at the end of the run, in a separate process. A class
of weight 0 is taken as left out on purpose. Also a sampler with only as many weights as there are
classes: all later samples are never drawn.

## Why it matters
The rare class, which the sampler should favour, is hardly ever drawn.

## Example
    weights = counts / counts.sum()
    sampler = WeightedRandomSampler(weights[labels], len(labels))

## Fix
    weights = 1 / counts

## See also
ND109 class-imbalance
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.items import SkewedSampling
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND129",
    "inverted-sampler",
    "warning",
    "a weighted sampler that favours the frequent class",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.items.sampling if evidence.items is not None else None
    if found is None:
        return
    if found.weights < found.samples:
        yield _too_few(rule, evidence, found)
        return
    there, drawn = f"{found.there:.3g} : 1", f"{found.drawn:.3g} : 1"
    yield learning_claim(
        rule,
        location_key(found.line) or ("data", rule.name),
        title=f"the sampler turns a class ratio of {there} into {drawn}",
        explanation=f"For each sample of class {found.least} the data set has {found.there:.3g} "
        f"of class {found.most}, but the sampler draws {found.drawn:.3g}: its weights are "
        "greater for the class that is already frequent.",
        culprit=Culprit(kind="data", location=found.line or evidence.data_site),
        phase="data",
        step=0,
        # the further from even, the less is it a wish
        weight=confidence(0.7, 1 - found.there / found.drawn),
        notes=[("in the data set", there), ("drawn", drawn)],
        fix="use weights of 1 / (class frequency)",
        standing=WIRED,
    )


def _too_few(rule: Rule, evidence: Evidence, found: SkewedSampling) -> Claim:
    share = found.weights / found.samples
    return learning_claim(
        rule,
        location_key(found.line) or ("data", rule.name),
        severity="critical",
        title=f"the sampler has {found.weights} weights for {found.samples} samples",
        explanation="There are as many weights as classes, and they apply to the first samples: "
        f"the other {found.samples - found.weights} samples are never drawn.",
        culprit=Culprit(kind="data", location=found.line or evidence.data_site),
        phase="data",
        step=0,
        weight=confidence(0.7, 1 - share),
        notes=[("weights", found.weights), ("samples", found.samples)],
        fix="use one weight per sample: weights_of_classes[labels]",
        standing=WIRED,
    )
