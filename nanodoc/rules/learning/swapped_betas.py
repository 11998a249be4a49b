"""## What it checks
The two betas of Adam and its variants: the first (average of the gradient) is larger than the
second (average of its square), and 0.99 or more.

## Why it matters
The direction then follows gradients of hundreds of steps ago, and the step size those of the last
ten: updates lag and jump.

## Example
    torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.999, 0.9))

## Fix
    torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999))

## See also
ND609 learning-rate-range
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND658",
    "swapped-betas",
    "warning",
    "Adam's two betas are swapped",
    needs=("stats",),
    thresholds={"first": Threshold(0.99, "smallest beta1 that counts (torch's default is 0.9)")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    given = evidence.stats.betas if evidence.stats is not None else ()
    sites = evidence.optimizer_sites
    for number, betas in enumerate(given):
        if betas is None or not betas[0] > betas[1] or betas[0] < check.limit(evidence, "first"):
            continue
        first, second = betas
        yield learning_claim(
            rule,
            ("betas", number),
            title=f"the betas are {first:g} and {second:g}: they are swapped",
            explanation=f"The average of the gradients reaches back {1 / (1 - first):.0f} steps, "
            f"that of their squares {1 / (1 - second):.0f}. It should be the other way round.",
            culprit=Culprit(kind="optimizer", location=sites[number] if sites[number:] else None),
            phase="optimizer",
            weight=confidence(0.7, min(10 * (first - second), 0.8)),
            notes=[("betas", f"{first:g}, {second:g}")],
            fix=f"betas=({second:g}, {first:g})",
            standing=WIRED,
        )
        return
