"""## What it checks
A cross entropy over the similarities between all samples of a batch, whose targets pair them, or
any loss that compares labels with each other where each label belongs to two samples. Reported if,
with the weights of the last or of the first step, the paired samples are no closer than random
ones, while a different usual pairing (half a batch apart, or side by side) is far closer than
chance.

## Why it matters
The two views of a sample look similar to any network. If the targets name other samples, the loss
pulls unrelated samples together and pushes the views apart.

## Example
    z = torch.cat([model(first), model(second)])   # sample i is at i and at i + n
    targets = torch.arange(2 * n) ^ 1              # i and i + 1

## Fix
    targets = torch.arange(2 * n).roll(n)

## See also
ND647 flattened-scores; Chen et al. 2020, A simple framework for contrastive learning
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim


@rule(
    "ND141",
    "misplaced-positives",
    "critical",
    "contrastive targets that pair unrelated samples",
    needs=("inspection",),
    thresholds={
        "near": Threshold(6.0, "standard errors by which the other order's pairs are closer"),
        "strangers": Threshold(3.0, "standard errors from chance of the targets' pairs"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    pairs = inspection.pairs if inspection is not None else None
    if calls is None or pairs is None:
        return
    nearness, order = max((pairs.in_halves, "i and i + n/2"), (pairs.side_by_side, "2i and 2i + 1"))
    # a rank among strangers is uniform, its variance is 1/12; the two of a pair say the same
    error = 1 / math.sqrt(12 * pairs.samples / 2)
    if nearness < 0.5 + check.limit(evidence, "near") * error:
        return
    if abs(pairs.wanted - 0.5) > check.limit(evidence, "strangers") * error:
        return
    call = calls.calls[pairs.call]
    made = calls.origin(call.arguments[1])
    at = made if isinstance(made, CallFacts) and made.site is not None else call
    yield learning_claim(
        rule,
        location_key(at.site) or ("positives",),
        title="the targets pair each sample with an unrelated one",
        explanation=f"{pairs.wanted:.0%} of the other samples are farther from a sample than the "
        f"one that its target names, as by chance. For the order {order} it is "
        f"{nearness:.0%}: these seem to be the two views of a sample, and they are pushed "
        "apart.",
        culprit=at_call(at, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, nearness - 0.5),
        notes=[
            ("samples", str(pairs.samples)),
            ("compared at", call.site.place if call.site is not None else None),
        ],
        fix=f"use targets that pair {order}",
        standing=WIRED,
    )
