"""## What it checks
A softmax, log_softmax, logsumexp or attention kernel with a row in which every entry is −inf.

## Why it matters
−inf masks are fine until a row contains nothing else: a document that is all padding, a query that
may attend to no key. The softmax of that row is NaN, and through the shared weights so is every
gradient. Where no row along a later axis would be fully masked, the softmax runs over the wrong
axis.

## Example
    attn(x, x, x, key_padding_mask=pad)        # pad[71] is all True

## Fix
Leave one entry of each row unmasked, or drop samples that consist only of padding.

## See also
ND207 indeterminate-form, ND211 mask-constant-overflow
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import UnmaskRow, WithoutSamples
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import MaskedRows
from nanodoc.facts.ops import OpFacts
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.rewrite import on_argument, on_keyword
from nanodoc.vocabulary.calls import SOFTMAXES

_OF_ROWS = (*SOFTMAXES, "safe_softmax", "masked_softmax", "logsumexp")


@rule(
    "ND205",
    "fully-masked-softmax",
    "critical",
    "a softmax row that is all −inf",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if not isinstance(site.notes, MaskedRows) or not site.notes.fully_masked:
            continue
        rows, total = site.notes.fully_masked, site.notes.rows
        who = ""
        if birth.samples:
            who = (
                f" The rows belong to sample{'s' if len(birth.samples) > 1 else ''} "
                f"{', '.join(map(str, birth.samples[:8]))} of the batch"
            )
            who += (
                f" (data set {', '.join(map(str, birth.dataset_indices[:8]))})."
                if birth.dataset_indices
                else "."
            )
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{count(rows, 'softmax row')} with every entry masked",
            explanation=f"{rows} of {total} rows are all −inf, and the softmax of such a row is "
            f"0/0 = NaN.{who}{_of_the_axis(site.notes)}",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("fully masked rows", rows), ("rows", total)],
            fixes=[
                _unmasked(site),
                Fix(
                    title="drop samples that consist only of padding",
                    confidence="likely",
                    remedy=WithoutSamples(),
                ),
            ],
        )


def _of_the_axis(notes: MaskedRows) -> str:
    if notes.along is None:
        return ""
    return (
        f" Along dim {notes.along} no row is: the mask was made for a softmax over that axis, and "
        "this one runs over another axis."
    )


def _unmasked(site: OpFacts) -> Fix:
    remedy = UnmaskRow(location=site.location)
    patch = (
        on_argument(site, "{x}.masked_fill({x}.isneginf().all(-1, keepdim=True), 0.0)")
        if site.short in _OF_ROWS
        else None
    )
    patch = patch or on_keyword(site, ("key_padding_mask",), "{x} & ~{x}.all(-1, keepdim=True)")
    return Fix(title="unmask the rows in which everything is masked", patch=patch, remedy=remedy)
