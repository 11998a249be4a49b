"""ND205 and ND207: −inf that was put there on purpose, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.forward.guards import harmless
from nanodoc.rules.rewrite import on_argument, on_keyword

_SOFTMAXES = ("softmax", "log_softmax", "safe_softmax", "logsumexp", "masked_softmax")


def _is_attention(short: str) -> bool:
    return "scaled_dot_product" in short


def _fully_masked_softmax(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        rows = int(site.notes.get("fully_masked_rows", 0))
        if not rows or not (site.short in _SOFTMAXES or _is_attention(site.short)):
            continue
        total = int(site.notes.get("rows", 0))
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
            explanation=f"{rows} of {total} rows are all −inf, and the softmax of such a row is 0/0 = "
            f"NaN.{who}",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("fully masked rows", rows), ("rows", total)],
            fixes=[
                _unmasked(site),
                Fix(
                    title="drop samples that consist of padding only",
                    confidence="likely",
                    remedy=Remedy(kind="without-samples"),
                ),
            ],
        )


def _indeterminate_form(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if birth.inf_inputs:
            form = _form(site.short)
            yield birth_claim(
                rule,
                evidence,
                birth,
                title=f"{form} is NaN in {site.short}"
                if birth.kind == "nan"
                else f"a masked −inf reaches the loss through {site.short}",
                explanation=f"{site.short} met an inf that was put there on purpose (from "
                f"{', '.join(birth.inf_inputs)})"
                + (
                    f", and {form} has no value."
                    if birth.kind == "nan"
                    else ", and nothing after it takes it away."
                ),
                exact=0.8,
                specificity=Specificity.FAMILY,
                extra=[("inf comes from", ", ".join(birth.inf_inputs))],
                fixes=[
                    *_without_inf(birth),
                    Fix(
                        title="apply the mask where its inf is taken away again (before a softmax), "
                        "or mask with where() on the result",
                        confidence="maybe",
                    ),
                ],
            )
        elif birth.kind == "nan" and birth.phase == "forward":
            yield birth_claim(
                rule,
                evidence,
                birth,
                title=f"{site.short} turns finite inputs into NaN",
                explanation=f"All inputs of {site.short} are finite, its output is not; an intermediate "
                "of the op has no finite value.",
                exact=0.3,
                specificity=Specificity.FALLBACK,
            )


def _unmasked(site: OpFacts) -> Fix:
    remedy = Remedy(kind="unmask-row", location=site.location)
    patch = (
        on_argument(site, "{x}.masked_fill({x}.isneginf().all(-1, keepdim=True), 0.0)")
        if site.short in _SOFTMAXES
        else None
    )
    patch = patch or on_keyword(site, ("key_padding_mask",), "{x} & ~{x}.all(-1, keepdim=True)")
    return Fix(
        title="leave the rows unmasked in which everything is masked", patch=patch, remedy=remedy
    )


def _without_inf(birth: Birth) -> list[Fix]:
    """The masked −inf replaced by 0 where it enters the op that has no use for it."""
    at = next((i for i, fact in enumerate(birth.site.inputs) if fact.inf), None)
    return (
        []
        if at is None
        else [
            harmless(
                birth.site, at, f"give {birth.site.short} 0 where the mask put −inf", nan=False
            )
        ]
    )


def _form(short: str) -> str:
    return {
        "mul": "0 · inf",
        "add": "inf − inf",
        "sub": "inf − inf",
        "div": "inf/inf",
        "sum": "inf − inf",
        "mean": "inf − inf",
    }.get(short, "a form such as 0 · inf or inf − inf")


RULES = (
    Rule(
        code="ND205",
        name="fully-masked-softmax",
        severity="critical",
        summary="a softmax row that is all −inf",
        check=_fully_masked_softmax,
        doc="""\
## What it checks
A softmax, log_softmax, logsumexp or attention kernel with a row in which every entry is −inf.

## Why it matters
−inf masks are normal until one row has nothing else: a document of padding only, a query that may see no key.
The softmax of that row is NaN, and through the shared weights so is every gradient.

## Example
    attn(x, x, x, key_padding_mask=pad)        # pad[71] is all True

## Fix
Leave one entry of each row unmasked, or drop the samples that consist of padding only.

## Options
None.

## See also
ND207 indeterminate-form, ND211 mask-constant-overflow
""",
    ),
    Rule(
        code="ND207",
        name="indeterminate-form",
        severity="critical",
        summary="inf − inf, 0 · inf, inf/inf",
        check=_indeterminate_form,
        doc="""\
## What it checks
An op made NaN out of an inf that is no accident (a mask constant, a buffer), or out of finite inputs in a way that
no more specific rule explains.

## Why it matters
A masked −inf is harmless as long as a softmax takes it away. Multiplied by zero, or added to +inf, it is NaN.

## Example
    loss = (scores.masked_fill(pad, float("-inf")) * keep).sum()        # −inf · 0

## Fix
Apply the mask where its inf is taken away again, or mask the result with where().

## Options
None.

## See also
ND205 fully-masked-softmax
""",
    ),
)
