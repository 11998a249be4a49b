"""## What it checks
A cross entropy over the similarities of all samples of a batch with each other, whose targets pair
them, or any loss that compares labels with each other of which each stands for two samples. With
the weights of the last step or of the first, are the pairs no nearer than strangers, and the
samples of another usual order (half a batch apart, or side by side) far nearer than chance?

## Why it matters
The two views of a sample are alike for any network. Where the targets name others, the loss pulls
strangers together and pushes the views apart.

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
    "contrastive targets that pair samples with strangers",
    needs=("inspection",),
    thresholds={
        "near": Threshold(6.0, "standard errors by which the other order's pairs are nearer"),
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
        title="the targets pair each sample with a stranger",
        explanation=f"{pairs.wanted:.0%} of the others are farther from a "
        f"sample than the one that its target names, as by chance. Of the order {order} it is "
        f"{nearness:.0%}: these are the two views of a sample, it seems, and are pushed apart.",
        culprit=at_call(at, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, nearness - 0.5),
        notes=[
            ("samples", str(pairs.samples)),
            ("compared at", call.site.place if call.site is not None else None),
        ],
        fix=f"targets that pair {order}",
        standing=WIRED,
    )
