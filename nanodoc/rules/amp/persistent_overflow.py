"""## What it checks
A GradScaler that skips every step, or keeps skipping until the scale is below 1. At the end of the
run the step is re-run without the scale and traced: its gradients are still not finite, and the op
that makes them so is named.

## Why it matters
The scaler lowers the scale forever and no step is ever taken, while the printed loss stays finite.

## Example
    (x.half() * 300.0).pow(2).mean().backward()      # the gradient of the square passes 65504 at
    any scale

## Fix
Run that module in float32, or use bfloat16, which has float32's range.

## See also
ND402 collapsing-scale, ND305 backward-overflow, ND203 low-precision-overflow
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.overflow_claims import half_fixes


@rule(
    "ND407",
    "persistent-overflow",
    "critical",
    "gradients that are non-finite at every loss scale",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if (
        facts is None
        or evidence.trip is None
        or len(facts.skipped) < 2
        or not any(not retry.finite_unscaled for retry in facts.retried)
    ):
        return
    always = len(facts.skipped) == len(facts.steps)
    if not always and min(step.scale for step in facts.steps) >= 1:
        return
    scales = [step.scale for step in facts.steps]
    for birth in evidence.births:
        where = ", ".join(evidence.trip.bad_parameters[:3])
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{'every step' if always else 'step after step'} overflows at every loss scale: "
            f"{birth.op.short} gives a non-finite gradient",
            explanation=f"{facts.story}, and the gradients of {where} are not finite even without "
            "a scale. The scaler skips the step each time, so nothing is learned.",
            exact=0.8,
            specificity=Specificity.FAMILY,
            extra=[
                ("loss scale at first", scales[0]),
                ("loss scale at last", scales[-1]),
                ("skipped steps", len(facts.skipped)),
            ],
            fixes=half_fixes(birth.site),
        )
