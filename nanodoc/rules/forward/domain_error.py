"""## What it checks
An op turned finite values into NaN or inf because its inputs at those elements lie outside the
function's domain: sqrt or log of a negative number, acos of 1.0000001, pow(−2, 0.5), atanh(1).

## Why it matters
Rounding is enough: a cosine of 1.0000001, a variance of −1e-9 from E[x²] − E[x]².

## Example
    angle = torch.acos((a * b).sum(-1))        # normalised vectors, 1.0000001 after rounding

## Fix
Keep the argument inside the domain (clamp), with a margin where the derivative is infinite at the
boundary.

## See also
ND206 log-of-zero, ND301 infinite-gradient
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth
from nanodoc.rules.base import birth_claim, count, values
from nanodoc.rules.forward.domain import at_failure, forward_births
from nanodoc.rules.forward.guards import guards

# op -> (is this value outside the domain?, what the domain is)
_DOMAINS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "sqrt": (lambda low, high: low < 0, "x ≥ 0"),
    "rsqrt": (lambda low, high: low < 0, "x > 0"),
    "log": (lambda low, high: low < 0, "x > 0"),
    "log2": (lambda low, high: low < 0, "x > 0"),
    "log10": (lambda low, high: low < 0, "x > 0"),
    "log1p": (lambda low, high: low < -1, "x > −1"),
    "logit": (lambda low, high: low < 0 or high > 1, "0 < x < 1"),
    "acos": (lambda low, high: low < -1 or high > 1, "−1 ≤ x ≤ 1"),
    "asin": (lambda low, high: low < -1 or high > 1, "−1 ≤ x ≤ 1"),
    "acosh": (lambda low, high: low < 1, "x ≥ 1"),
    "atanh": (lambda low, high: low <= -1 or high >= 1, "−1 < x < 1"),
    "erfinv": (lambda low, high: low <= -1 or high >= 1, "−1 < x < 1"),
    "pow": (lambda low, high: low < 0, "a base ≥ 0 for a non-integer exponent"),
    "xlogy": (lambda low, high: low < 0, "x > 0"),
    "lgamma": (lambda low, high: low <= 0, "x that is not 0 or a negative integer"),
    "digamma": (lambda low, high: low <= 0, "x that is not 0 or a negative integer"),
}


@rule(
    "ND201",
    "domain-error",
    "critical",
    "log, sqrt, pow, acos… of a value outside its domain",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in forward_births(evidence):
        site = birth.site
        if site.short not in _DOMAINS or (site.short == "pow" and not _fractional_power(birth)):
            continue
        at = at_failure(site, 1 if site.short == "xlogy" else 0)
        outside, domain = _DOMAINS[site.short]
        if (
            at is None
            or at.minimum is None
            or at.maximum is None
            or not outside(at.minimum, at.maximum)
        ):
            continue
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of a value outside its domain",
            explanation=f"{site.short} needs {domain}, but got {values(at.minimum, at.maximum)} "
            f"at the {count(at.count, 'element')} that became {birth.kind} (input from "
            f"{site.inputs[0].label}).",
            exact=1.0,
            extra=[
                ("input at the bad elements", values(at.minimum, at.maximum)),
                ("bad elements", at.count),
            ],
            fixes=[*guards(site, f"keep the argument of {site.short} inside its domain")],
        )


def _fractional_power(birth: Birth) -> bool:
    """A negative base is outside the domain of a fractional exponent only, and gives NaN there; a
    whole power overflows."""
    exponent = birth.site.scalars.get("exponent")
    whole = isinstance(exponent, (int, float)) and float(exponent).is_integer()
    return birth.kind == "nan" and not whole
