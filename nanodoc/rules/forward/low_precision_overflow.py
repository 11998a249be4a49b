"""## What it checks
An op in float16 or bfloat16 gave inf from finite inputs. The op is re-run on float32 copies of its
inputs: a finite result means that the dtype, not the math, is at fault.

## Why it matters
float16's largest number is 65504. Feed-forward outputs, attention scores and squared norms of
models trained in bfloat16 exceed it, and the inf turns into NaN in the next normalisation.

## Example
    with torch.autocast("cuda", dtype=torch.float16):
        h = self.wo(F.relu(self.wi(x)))        # 6.6e4 → inf

## Fix
Run that module in float32 (autocast disabled around it, inputs cast up), or use bfloat16.

## See also
ND204 overflow, ND305 backward-overflow
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.floats import LARGEST, is_half
from nanodoc.rules.forward.overflow_claims import (
    bad_dtype,
    finite_inputs,
    half_fixes,
    largest_input,
)


@rule(
    "ND203",
    "low-precision-overflow",
    "critical",
    "finite in float32, inf in half precision",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        dtype = bad_dtype(site)
        if (
            birth.phase != "forward"
            or not is_half(dtype)
            or site.upcast_absmax is None
            or not finite_inputs(birth)
        ):
            continue
        limit = LARGEST[str(dtype)]
        if site.upcast_absmax <= limit:
            continue
        largest = largest_input(site)
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} overflows {dtype}",
            explanation=f"The result reaches {site.upcast_absmax:.4g} when the same op runs in "
            f"float32, but the largest {dtype} is {limit:.5g}. The op's largest input is "
            f"{largest:.4g}."
            if largest is not None
            else f"The result reaches {site.upcast_absmax:.4g} in float32; the largest {dtype} is "
            f"{limit:.5g}.",
            exact=1.0,
            growth=True,
            extra=[
                ("largest result in float32", site.upcast_absmax),
                (f"largest {dtype}", limit),
                ("largest input", largest),
            ],
            fixes=half_fixes(site),
        )
