"""## What it checks
A log, root, division or arc function hit its singular point despite an epsilon that should prevent
it: the constant that was added or clamped to, rounded to the tensor's dtype, is 0 (or exactly 1).

## Why it matters
1e-8 is 0 in float16, whose smallest positive number is 6e-8. 1 − 1e-8 is exactly 1 in float32,
whose numbers near 1 are 6e-8 apart. The guard is in the code and does nothing.

## Example
    p = torch.clamp(p, 1e-8, 1 - 1e-8)
    loss = -torch.log(1 - p)

## Fix
Use an epsilon that the dtype can hold: 1e-6 below 1 in float32, 1e-3 in float16.

## See also
ND206 log-of-zero, ND202 division-by-zero
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import Float32Call, ReplaceConstant
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.floats import rounded
from nanodoc.vocabulary.calls import ADDITIONS, CLAMPS, FACTORS
from nanodoc.vocabulary.ops import SINGULAR

# A constant this small next to values of order 1 is there to stabilise, not to compute.
_TINY = 1e-3

_WITH_CONSTANTS = (*ADDITIONS, *CLAMPS, *FACTORS, "rsub", "maximum", "minimum")
_NEAREST = 6  # ancestors of the failing op that can have shaped its argument


@rule(
    "ND210",
    "vanishing-epsilon",
    "critical",
    "a stabilising constant that the dtype rounds away",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if site.short not in SINGULAR or birth.saved_nonfinite:
            continue
        for op in (site, *birth.upstream[:_NEAREST]):
            lost = _lost_constant(op, birth)
            if lost is None:
                continue
            name, value, becomes, dtype = lost
            where = op.location.place if op.location else "an op before"
            yield birth_claim(
                rule,
                evidence,
                birth,
                title=f"the epsilon that guards {site.short} is rounded away in {dtype}",
                explanation=f"{op.short} at {where} gets {name}={value!r}, which is exactly "
                f"{becomes:g} in {dtype}, so nothing keeps the argument of {site.short} away "
                "from its singular point.",
                exact=1.0,
                specificity=Specificity.SPECIAL,
                extra=[
                    ("constant", value),
                    (f"as {dtype}", becomes),
                    ("given to", f"{op.short} at {where}"),
                ],
                fixes=[
                    Fix(
                        title=f"use an epsilon that {dtype} can hold ({_smallest(dtype, becomes)})",
                        confidence="likely",
                        remedy=ReplaceConstant(
                            location=op.location,
                            value=value,
                            replacement=_larger(value, dtype, becomes),
                        ),
                    ),
                    *(
                        [
                            Fix(
                                title="compute this in float32",
                                confidence="maybe",
                                remedy=Float32Call(location=op.location),
                            )
                        ]
                        if dtype != "float32"
                        else []
                    ),
                ],
            )
            break


def _lost_constant(op: OpFacts, birth: Birth) -> tuple[str, float, float, str] | None:
    """(argument, value, what it became, dtype) of a stabilising constant of `op` that its dtype
    can't hold."""
    if not op.outputs or op.short not in _WITH_CONSTANTS:
        return None
    dtype = op.outputs[0].dtype
    if dtype not in ("float16", "bfloat16", "float32"):
        return None
    for name, value in op.scalars.items():
        if (
            name == "alpha"
            or isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value == 0
        ):
            continue
        becomes = rounded(float(value), dtype)
        if 0 < abs(value) < _TINY and becomes == 0:
            return name, value, becomes, dtype
        if (
            abs(value) != 1
            and abs(abs(value) - 1) < _TINY
            and abs(becomes) == 1
            and _met(op, becomes)
        ):
            return name, value, becomes, dtype
    return None


def _met(op: OpFacts, bound: float) -> bool:
    """The values did reach the bound that should have been a little smaller."""
    out = op.outputs[0]
    return bound in (out.maximum, out.minimum)


def _larger(value: float, dtype: str, near: float) -> float:
    """A constant that does the same work and that the dtype can hold."""
    gap = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)
    if near == 0:
        return {"float16": 1e-4, "bfloat16": 1e-30}.get(dtype, 1e-30) * (1 if value > 0 else -1)
    return (1 - gap) * (1 if value > 0 else -1)


def _smallest(dtype: str, near: float) -> str:
    if near == 0:
        return {"float16": "at least 1e-4 for a safe reciprocal", "bfloat16": "at least 1e-30"}.get(
            dtype, "at least 1e-30"
        )
    return {"float16": "1e-3 below 1", "bfloat16": "1e-2 below 1"}.get(dtype, "1e-6 below 1")
