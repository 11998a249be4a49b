"""## What it checks
A backward op in half precision gave a non-finite gradient from finite inputs, but gives a finite
one from float32 copies of them.

## Why it matters
With a GradScaler the step is skipped and the scale halved, which is healthy in the first steps;
without one, or when it happens at every scale, the weights are lost.

## Example
A loss scale of 2¹⁶ times a gradient of 2.

## Fix
Lower the initial scale, run the module in float32, or use bfloat16.

## See also
ND203 low-precision-overflow
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.floats import LARGEST, is_half
from nanodoc.rules.forward.overflow_claims import bad_dtype, half_fixes


@rule(
    "ND305",
    "backward-overflow",
    "critical",
    "gradients overflow in half precision",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if (
            birth.phase != "backward"
            or not is_half(bad_dtype(birth.op))
            or birth.saved_nonfinite
            or birth.op.upcast_absmax is None
        ):
            continue
        limit = LARGEST[str(bad_dtype(birth.op))]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"a gradient overflows {bad_dtype(birth.op)} in the backward of "
            f"{birth.site.short}",
            explanation=f"The gradient reaches {birth.op.upcast_absmax:.4g} when the same op runs "
            f"in float32; the largest {bad_dtype(birth.op)} is {limit:.5g}.",
            exact=1.0 if birth.op.upcast_absmax > limit else 0.3,
            specificity=Specificity.FALLBACK,
            extra=[
                ("largest gradient in float32", birth.op.upcast_absmax),
                ("largest value", limit),
            ],
            fixes=half_fixes(birth.site),
        )
