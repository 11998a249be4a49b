"""## What it checks
A constant of large magnitude (a mask's −1e9, or a sum of two masks) that becomes −inf in float16 or
bfloat16, or that torch refuses to convert.

## Why it matters
The softmax of a row of attention scores that is all −inf is NaN.

## Example
    scores = scores + (1.0 - mask.half()) * -1e9

## Fix
Use torch.finfo(scores.dtype).min, once, or a boolean mask.

## See also
ND205 fully-masked-softmax
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import ReplaceConstant
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import OpFacts, ValuesAt
from nanodoc.rules.base import birth_claim
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.forward.floats import LARGEST, is_half
from nanodoc.rules.forward.overflow_claims import bad_dtype
from nanodoc.vocabulary.ops import FILLED

_CONSTANTS = ("constant", *FILLED)


@rule(
    "ND211",
    "mask-constant-overflow",
    "critical",
    "−1e9 or float32's minimum as a mask in half precision",
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
            or site.short not in ("to_copy", "copy", "add", "mul", "sub", "masked_fill")
        ):
            continue
        limit = LARGEST[str(dtype)]
        value = _mask_constant(site, -limit / 4)
        if value is None:
            continue
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"the mask constant {value:.4g} becomes −inf in {dtype}",
            explanation=f"{dtype} holds at most ±{limit:.5g}; the constant, or a sum of two such "
            "constants, exceeds that, and the softmax of a row that is all −inf is NaN.",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("mask constant", value), (f"largest {dtype}", limit)],
            fixes=[
                Fix(
                    title="mask with torch.finfo(scores.dtype).min, once, or with a boolean mask",
                    confidence="likely",
                    remedy=ReplaceConstant(
                        location=site.location, value=value, replacement=-limit / 2
                    ),
                )
            ],
        )
    failure = evidence.failure
    if (
        failure is not None
        and "cannot be converted to type" in failure.message
        and "without overflow" in failure.message
    ):
        yield failure_claim(
            rule,
            evidence,
            title="a mask constant does not fit into half precision",
            explanation=f"torch refused it: {failure.message.splitlines()[0]}",
            fixes=[Fix(title="mask with torch.finfo(scores.dtype).min", confidence="likely")],
            specificity=Specificity.SPECIAL,
        )


def _mask_constant(site: OpFacts, least: float) -> float | None:
    """A constant that the op is given and that is `least` or below; None where there is none."""
    for fact in site.inputs:
        constant = fact.label in _CONSTANTS or fact.label.startswith("buffer:")
        if constant and fact.minimum is not None and fact.minimum <= least:
            return fact.minimum
    for scalar in site.scalars.values():
        if isinstance(scalar, float) and scalar <= least:
            return scalar
    for at in site.values_at:
        if at is not None and _is_one_value(at) and at.minimum is not None and at.minimum <= least:
            return at.minimum
    return None


def _is_one_value(at: ValuesAt) -> bool:
    """Several elements overflow and all hold the very same number: a constant, not an
    activation."""
    return at.count > 1 and at.minimum == at.maximum
