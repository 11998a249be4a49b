"""## What it checks
A division, reciprocal, rsqrt or negative power whose divisor is exactly zero at the elements that
became NaN or inf.

## Why it matters
Counts of positives, norms and variances are occasionally zero. The inf from x/0 often becomes NaN
only a few lines later (inf/inf, 0 · inf); the division is the cause.

## Example
    ratio = n_all / n_pos        # a batch without positives

## Fix
Keep the divisor away from zero: clamp(min=1) for counts, clamp_min(eps) for norms. An eps that the
dtype rounds away does nothing (ND210).

## See also
ND210 vanishing-epsilon, ND106 empty-reduction
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, ValuesAt
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.forward.domain import at_failure, forward_births
from nanodoc.rules.forward.guards import guards


@rule(
    "ND202",
    "division-by-zero",
    "critical",
    "x/0 or 0/0: an empty count, a zero norm",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in forward_births(evidence):
        site = birth.site
        if site.short in ("div", "remainder", "fmod") and (
            len(site.inputs) > 1 or site.scalars.get("other") == 0
        ):
            position = 1
        elif site.short in ("reciprocal", "rsqrt") or (
            site.short == "pow" and _negative(site.scalars.get("exponent"))
        ):
            position = 0
        else:
            continue
        if len(site.inputs) <= position:  # divided by the number 0
            at = ValuesAt(minimum=0.0, maximum=0.0, zeros=1, count=1)
        else:
            looked = at_failure(site, position)
            if looked is None or not looked.zeros:
                continue
            at = looked
        divisor = site.inputs[position].label if len(site.inputs) > position else "the number 0"
        zero_over_zero = birth.kind == "nan" and position == 1
        yield birth_claim(
            rule,
            evidence,
            birth,
            title="0/0 is NaN" if zero_over_zero else "division by zero",
            explanation=f"The divisor (from {divisor}) is exactly 0 at {count(at.zeros, 'element')}"
            + (
                ", and so is the dividend there."
                if zero_over_zero
                else ", which makes the quotient infinite."
            ),
            exact=at.zeros / at.count if at.count else 0.0,
            extra=[("zero divisors at the bad elements", at.zeros), ("bad elements", at.count)],
            fixes=[*guards(site, "keep the divisor away from zero"), *_at_the_root(birth)]
            if len(site.inputs) > position
            else [_OF_A_NUMBER],
        )


_OF_A_NUMBER = Fix(
    title="the divisor is a Python number: find out why it is 0, or use max(divisor, 1e-12)",
    confidence="maybe",
)


def _at_the_root(birth: Birth) -> list[Fix]:
    """A divisor that is the root of zero has an infinite gradient, too: the constant belongs under
    the root."""
    for op in birth.upstream:
        if op.short == "sqrt" and any(fact.zeros for fact in op.outputs):
            return [
                replace(fix, replaces=op.location)
                for fix in guards(
                    op,
                    "keep the argument of the sqrt away from zero: its gradient is infinite there",
                )
            ]
    return []


def _negative(value: object) -> bool:
    return isinstance(value, (int, float)) and value < 0
