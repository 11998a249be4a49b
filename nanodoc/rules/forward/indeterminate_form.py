"""## What it checks
An op made NaN from an intentional inf (a mask constant, a buffer), or from finite inputs in a way
that no more specific rule explains.

## Why it matters
A masked −inf is harmless as long as a softmax removes it. Multiplied by zero or added to +inf, it
becomes NaN.

## Example
    loss = (scores.masked_fill(pad, float("-inf")) * keep).sum()        # −inf · 0

## Fix
Apply the mask where its inf is removed again (before a softmax), or mask the result with where().

## See also
ND205 fully-masked-softmax
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.guards import harmless


@rule(
    "ND207",
    "indeterminate-form",
    "critical",
    "inf − inf, 0 · inf, inf/inf",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
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
                explanation=f"{site.short} got an inf that was put there on purpose (from "
                f"{', '.join(birth.inf_inputs)})"
                + (
                    f", and {form} has no value."
                    if birth.kind == "nan"
                    else ", and nothing after it removes it."
                ),
                exact=0.8,
                specificity=Specificity.FALLBACK,
                extra=[("inf comes from", ", ".join(birth.inf_inputs))],
                fixes=[
                    *_without_inf(birth),
                    Fix(
                        title="apply the mask where its inf is removed again (before a softmax), "
                        "or mask the result with where()",
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
                explanation=f"All inputs of {site.short} are finite, but its output is not: an "
                "intermediate value inside the op is not finite.",
                exact=0.3,
                specificity=Specificity.FALLBACK,
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
