"""## What it checks
A cross entropy (nll_loss) that is NaN although its inputs are finite: nanodoc checks whether any
targets were kept.

## Why it matters
With every target equal to ignore_index the mean is 0/0 = NaN. The gradients are often exact zeros,
so the weights survive, but the logged loss and its averages do not.

## Example
    F.cross_entropy(logits, torch.full((8,), -100))

## Fix
Skip such batches, or use reduction="sum" and divide by max(number of kept targets, 1).

## See also
ND106 empty-reduction
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import KeptMean
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import KeptTargets
from nanodoc.rules.base import birth_claim
from nanodoc.rules.rewrite import sum_over_kept


@rule(
    "ND105",
    "all-targets-ignored",
    "critical",
    "the loss is a mean over no targets",
    preflight="labels",
    trials=(
        "values",
        "samples",
    ),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        notes = site.notes
        if not isinstance(notes, KeptTargets) or birth.kind != "nan":
            continue
        ignored = notes.ignore_index
        if notes.kept == 0:
            title = f"every target of this batch is ignored (ignore_index={ignored})"
            text = (
                f"All {notes.targets} targets equal ignore_index={ignored}, so the mean "
                "is over no elements: 0/0 = NaN."
            )
        elif notes.weight == 0:
            title = "every kept target has class weight zero"
            text = (
                f"The class weights of the {notes.kept} kept targets sum to 0, so the weighted "
                "mean is 0/0 = NaN."
            )
        else:
            continue
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=title,
            explanation=text,
            exact=1.0,
            specificity=Specificity.EXACT,
            extra=[("targets", notes.targets), ("kept targets", notes.kept)],
            fixes=[
                Fix(
                    title='use reduction="sum" and divide by max(number of kept targets, 1), or '
                    "skip a batch without targets",
                    confidence="likely",
                    patch=sum_over_kept(site, ignored) if notes.kept == 0 else None,
                    remedy=KeptMean(location=site.location),
                )
            ],
        )
