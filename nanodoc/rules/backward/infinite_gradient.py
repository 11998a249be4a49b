"""## What it checks
The loss and the forward pass are finite, but a gradient is not. nanodoc finds the first backward op
that makes a non-finite value from finite ones, and the forward call whose derivative it computes.

## Why it matters
sqrt(0) is 0, its derivative is 1/0. The step's loss looks fine; one optimizer step later every
weight is NaN. Anomaly mode stays silent if the result is inf and not NaN.

## Example
    pooled = torch.sqrt(x.pow(2).mean(1))        # a row of zeros

## Fix
Keep the argument away from the singular point, before the function: torch.sqrt(x + 1e-12). Masking
the result afterwards does not help (ND302).

## See also
ND302 masked-branch-gradient, ND201 domain-error
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.rules.backward.inputs import input_evidence, is_decomposition
from nanodoc.rules.base import birth_claim
from nanodoc.rules.forward.guards import guards

# op -> (the singular point in words, the derivative)
_DERIVATIVES = {
    "sqrt": ("zero", "1/(2·sqrt(x))"),
    "pow": ("zero", "n·x^(n−1)"),
    "acos": ("±1", "−1/sqrt(1 − x²)"),
    "asin": ("±1", "1/sqrt(1 − x²)"),
    "acosh": ("1", "1/sqrt(x² − 1)"),
    "atanh": ("±1", "1/(1 − x²)"),
    "xlogy": ("a second argument of zero", "log(y) and x/y"),
    "atan2": ("(0, 0)", "x/(x² + y²)"),
    "log": ("zero", "1/x"),
    "log2": ("zero", "1/(x·ln 2)"),
    "log10": ("zero", "1/(x·ln 10)"),
    "log1p": ("−1", "1/(1 + x)"),
    "rsqrt": ("zero", "−x^(−3/2)/2"),
    "reciprocal": ("zero", "−1/x²"),
    "div": ("a zero divisor", "1/y and −x/y²"),
    "norm": ("the zero vector", "x/|x|"),
    "linalg_vector_norm": ("the zero vector", "x/|x|"),
    "hypot": ("(0, 0)", "x/hypot(x, y)"),
    "cdist_forward": ("two equal points", "(x − y)/|x − y|"),
    "erfinv": ("±1", "sqrt(π)/2·exp(erfinv(x)²)"),
    "logit": ("0 or 1", "1/(x·(1 − x))"),
}


@rule(
    "ND301",
    "infinite-gradient",
    "critical",
    "the derivative is infinite at this input: sqrt, norm, pow<1 at 0, acos at ±1",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if birth.phase != "backward" or birth.saved_nonfinite or is_decomposition(birth):
            continue
        # finite in float32: the dtype is at fault (ND305), not the derivative; ND204 says which op
        # made huge values of modest ones
        if birth.op.upcast_absmax is not None or birth.amplified is not None:
            continue
        site = birth.site
        known = _DERIVATIVES.get(site.short) if birth.forward is not None else None
        if known is None:
            yield _unnamed(rule, evidence, birth, site)
            continue
        point, derivative = known
        zeros = _zeros(site)
        title = f"keep the argument of {site.short} away from {point}"
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of {point} has an infinite gradient"
            if point != "a zero divisor"
            else "division by zero has an infinite gradient",
            explanation=f"The derivative {derivative} is infinite at {point}. {zeros}"
            + (
                " The gradient that arrives there is 0, and 0 · inf = NaN."
                if birth.zero_gradient
                else ""
            ),
            exact=max(_singular_share(birth), 0.5),
            extra=[
                *input_evidence(site),
                ("autograd node", birth.op.node),
                ("bad gradient elements", sum(f.nonfinite for f in birth.op.outputs)),
            ],
            fixes=guards(site, title) or [Fix(title=title, confidence="likely")],
        )


def _singular_share(birth: Birth) -> float:
    """How many of the failing elements had a zero (or inf) at hand: 1 when one input of the failing
    op is all zero there."""
    shares = [at.zeros / at.count for at in birth.op.values_at if at is not None and at.count]
    return max(shares, default=0.0)


def _unnamed(rule: Rule, evidence: Evidence, birth: Birth, site: OpFacts) -> Claim:
    return birth_claim(
        rule,
        evidence,
        birth,
        title=f"the backward of {site.short} makes a non-finite gradient",
        explanation=f"{birth.op.short} under {birth.op.node} gets finite values and gives "
        f"{birth.kind}; "
        "the forward pass is finite throughout.",
        exact=_singular_share(birth) * 0.5,
        specificity=Specificity.FALLBACK,
        extra=input_evidence(birth.op),
    )


def _zeros(site: OpFacts) -> str:
    if not site.inputs:
        return ""
    fact = site.inputs[1] if site.short == "div" and len(site.inputs) > 1 else site.inputs[0]
    if fact.zeros:
        return f"{fact.zeros} of {fact.numel} inputs (from {fact.label}) are exactly 0."
    if fact.minimum is not None and fact.maximum is not None:
        return f"The input (from {fact.label}) lies in {fact.minimum:.6g} … {fact.maximum:.6g}."
    return ""
