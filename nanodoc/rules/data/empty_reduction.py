"""## What it checks
A mean, std, var or a mean-reduced loss whose input has no element in this step.

## Why it matters
A selection that is nearly always non-empty (positives, hard negatives, unmasked tokens) is empty
once in a long run, and that single step makes the loss NaN.

## Example
    loss = per_item[mask].mean()        # mask has no True in this batch

## Fix
Skip the term when nothing is selected, or divide a sum by max(count, 1).

## See also
ND105 all-targets-ignored, ND202 division-by-zero
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import EmptyMean
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import birth_claim
from nanodoc.rules.rewrite import sum_over_count
from nanodoc.vocabulary.calls import BINARIES, MEANS, REGRESSION, VARIANCES

# Ops whose result over no element is 0/0.
_MEAN_OF_NOTHING = (*MEANS, *VARIANCES, "median", *REGRESSION, *BINARIES, "kl_div")


@rule(
    "ND106",
    "empty-reduction",
    "critical",
    "mean, std or a loss of an empty selection",
    trials=(
        "values",
        "samples",
    ),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        empty = [fact for fact in site.inputs if fact.numel == 0]
        if site.short in _MEAN_OF_NOTHING and empty and birth.kind == "nan":
            yield birth_claim(
                rule,
                evidence,
                birth,
                title=f"{site.short} of an empty tensor is NaN",
                explanation=f"The input of {site.short} has shape {list(empty[0].shape)}: nothing "
                "was "
                "selected in this step, and the mean of nothing is 0/0.",
                exact=1.0,
                specificity=Specificity.EXACT,
                extra=[("input shape", list(empty[0].shape)), ("made by", empty[0].label)],
                fixes=[
                    Fix(
                        title="divide a sum by max(count, 1), or skip the term when nothing is "
                        "selected",
                        confidence="likely",
                        patch=sum_over_count(site),
                        remedy=EmptyMean(location=site.location),
                    )
                ],
            )
