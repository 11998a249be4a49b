"""## What it checks
std or var over no more elements than its correction (1 by default), and batch norm that raises
because each channel has a single value.

## Why it matters
The last batch of an epoch is often smaller: 129 samples in batches of 16 leave a last batch of 1,
whose unbiased std is NaN.

## Example
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)        # len(adv) == 1

## Fix
drop_last=True, skip the normalisation for a single value, or unbiased=False.

## See also
ND106 empty-reduction
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import LoneStatistics, SetKeyword, WithoutBatch
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import Divisor
from nanodoc.facts.ops import OpFacts
from nanodoc.rules.base import birth_claim
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.rewrite import unbiased_where_many, with_keyword
from nanodoc.vocabulary.calls import VARIANCES


@rule(
    "ND208",
    "degenerate-statistics",
    "critical",
    "unbiased std of one element, batch norm of one value",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if site.short not in VARIANCES or not isinstance(site.notes, Divisor):
            continue
        n, correction = site.notes.count, site.notes.correction
        if n - correction > 0 or n == 0:
            continue
        what = site.short.removesuffix("_mean")
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"unbiased {what} of {n} value is NaN"
            if n == 1
            else f"{what} of {n} values with correction {int(correction)} is NaN",
            explanation=f"{what} divides by count − correction = {n} − {int(correction)} = "
            f"{int(n - correction)}. The reduced dimension has {n} "
            f"element{'s' if n > 1 else ''} in this step (input shape "
            f"{list(site.inputs[0].shape)}), typically the last, smaller batch.",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("values", n), ("correction", int(correction))],
            fixes=_fixes(site, what),
        )
    failure = evidence.failure
    if failure is not None and "Expected more than 1 value per channel" in failure.message:
        yield failure_claim(
            rule,
            evidence,
            title="batch norm of a single value per channel",
            explanation=f"A batch of one has no variance: {failure.message.splitlines()[0]}. It is "
            "typically the last, smaller batch.",
            fixes=[
                Fix(
                    title="drop the last, smaller batch (drop_last=True)",
                    confidence="likely",
                    remedy=WithoutBatch(),
                )
            ],
            specificity=Specificity.SPECIAL,
        )


def _fixes(site: OpFacts, what: str) -> list[Fix]:
    """`what` is std or var."""
    return [
        Fix(
            title="drop the last, smaller batch (drop_last=True), or skip the "
            "normalisation for a single value",
            confidence="likely",
            remedy=WithoutBatch(),
        ),
        Fix(
            title=f"use the biased {what} of a single value, which is 0",
            patch=unbiased_where_many(site),
            confidence="likely",
            remedy=LoneStatistics(location=site.location),
        ),
        Fix(
            title="use the biased estimate",
            patch=with_keyword(site, "unbiased", False, drop=("correction",)),
            confidence="maybe",
            remedy=SetKeyword(location=site.location, op=what, keyword="unbiased", value=False),
        ),
    ]
