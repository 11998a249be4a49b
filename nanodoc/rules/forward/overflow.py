"""## What it checks
An op gave inf from finite inputs, and float32 could not have held the result either.

## Why it matters
exp(89) is beyond float32. If the values had been growing for many steps, this op is only where it
ended; it began with the learning rate or the initialisation, and the explanation says so.

## Example
    weight = torch.exp(log_weight)        # log_weight reached 120

## Fix
Bound the argument, or work with logarithms (logsumexp, logaddexp).

## See also
ND203 low-precision-overflow
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import LogSumExp
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.floats import LARGEST
from nanodoc.rules.forward.guards import guards
from nanodoc.rules.forward.overflow_claims import bad_dtype, largest_input, overflowed


@rule(
    "ND204",
    "overflow",
    "critical",
    "exp, pow or a product beyond the dtype's largest value",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if birth.amplified is not None and overflowed(birth):
            yield _amplified(rule, evidence, birth, birth.amplified)
            continue
        site = birth.site
        dtype, largest = bad_dtype(site), largest_input(site)
        if (
            birth.inf_inputs
            or birth.phase == "backward"
            or largest is None
            or not overflowed(birth)
        ):
            continue
        limit = LARGEST.get(str(dtype), 0.0)
        growth = _growth(evidence)
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} overflows {dtype}",
            explanation=f"Finite inputs of up to {largest:.4g} give a result beyond {limit:.4g}, "
            f"the largest {dtype}." + growth,
            exact=1.0
            if site.short in ("exp", "expm1", "pow", "cosh", "sinh", "mul", "square", "exp2")
            else 0.5,
            specificity=Specificity.FALLBACK,
            growth=True,
            extra=[("largest input", largest), (f"largest {dtype}", limit)],
            fixes=_bounded(site) if not growth else [],
        )


def _amplified(rule: Rule, evidence: Evidence, birth: Birth, op: OpFacts) -> Claim:
    """The values were huge before the op that passed the end: the one that made them so is to
    blame."""
    given, made = largest_input(op), max((f.absmax or 0.0 for f in op.outputs), default=0.0)
    where = "in backward" if birth.phase == "backward" else "further on"
    return birth_claim(
        rule,
        evidence,
        replace(birth, forward=op),
        title=f"{op.short} makes values of {made:.3g}, and {birth.op.short} overflows {where}",
        explanation=f"Inputs of up to {given:.4g} become {made:.4g} here; a value computed from "
        f"them exceeds {LARGEST.get(str(bad_dtype(birth.op)), 0.0):.4g}, the largest "
        f"{bad_dtype(birth.op)}.",
        exact=1.0,
        specificity=Specificity.SPECIAL,
        extra=[("largest input", given), ("largest output", made)],
        fixes=_bounded(op),
    )


def _bounded(site: OpFacts) -> list[Fix]:
    advice = Fix(
        title="bound the argument, or work with logarithms (logsumexp, logaddexp)",
        confidence="maybe",
    )
    if site.short != "exp":
        return [*guards(site, f"bound the argument of {site.short}"), advice]
    logs = Fix(
        title="compute log(sum(exp(x))) in one step: torch.logsumexp",
        remedy=LogSumExp(location=site.location),
    )
    shifted, *bounded = guards(site, "bound the argument of exp")
    return [
        logs,
        replace(
            shifted, title="subtract the largest entry of each row before exp, as softmax does"
        ),
        *bounded,
        advice,
    ]


def _growth(evidence: Evidence) -> str:
    """Says so when the loss had been growing before: then the op is where it ended, not where it
    began."""
    finite = [loss for loss in evidence.losses if loss - loss == 0]
    if len(finite) >= 2 and abs(finite[-1]) > 100 * max(abs(finite[0]), 1e-6):
        return (
            f" The loss had already grown from {finite[0]:.4g} to {finite[-1]:.4g}: check the "
            "learning rate and the initialisation first."
        )
    return ""
