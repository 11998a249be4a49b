"""ND201, ND202, ND206, ND303: a function asked for a value it doesn't have. Logs, roots,
divisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts, ValuesAt
from nanodoc.rules.base import birth_claim, count, values
from nanodoc.rules.forward.guards import guards
from nanodoc.rules.rewrite import log_softmax

_LOGS = ("log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlog1py", "logit_backward")

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
    "pow": (lambda low, high: low < 0, "a base ≥ 0 for an exponent that is no whole number"),
    "xlogy": (lambda low, high: low < 0, "x > 0"),
    "lgamma": (lambda low, high: low <= 0, "x that is no integer ≤ 0"),
    "digamma": (lambda low, high: low <= 0, "x that is no integer ≤ 0"),
}


def _at_failure(op: OpFacts, position: int = 0) -> ValuesAt | None:
    """The values of one input where the output is bad; the whole input's range where that wasn't
    looked at."""
    if position < len(op.values_at) and op.values_at[position] is not None:
        return op.values_at[position]
    if position < len(op.inputs):
        fact = op.inputs[position]
        return ValuesAt(
            minimum=fact.minimum,
            maximum=fact.maximum,
            zeros=fact.zeros,
            count=fact.numel,
            inf=fact.inf,
        )
    return None


def _forward(evidence: Evidence) -> Iterable[Birth]:
    # a hook or a custom backward is the user's code too: no derivative, but an op with a line of
    # its own
    return (birth for birth in evidence.births if birth.phase == "forward" or birth.forward is None)


def _domain_error(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in _forward(evidence):
        site = birth.site
        if site.short not in _DOMAINS or (site.short == "pow" and not _fractional_power(birth)):
            continue
        at = _at_failure(site, 1 if site.short == "xlogy" else 0)
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
            explanation=f"{site.short} needs {domain}, but got {values(at.minimum, at.maximum)} at the "
            f"{count(at.count, 'element')} that became {birth.kind} (input from "
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


def _division_by_zero(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in _forward(evidence):
        site = birth.site
        if site.short in ("div", "true_divide", "remainder", "fmod") and (
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
            looked = _at_failure(site, position)
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
            fixes=[*guards(site, "keep the divisor away from zero"), *_at_the_root(birth)],
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
                    "keep the argument of the sqrt away from zero: its gradient there is infinite",
                )
            ]
    return []


def _log_of_zero(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in _forward(evidence):
        site = birth.site
        if site.short not in _LOGS:
            continue
        at = _at_failure(site, 1 if site.short == "xlogy" else 0)
        if at is None or not _is_log_pole(site, at):
            continue
        source = _probability_source(birth)
        advice = [
            Fix(
                title="use the loss that takes logits (binary_cross_entropy_with_logits, logsigmoid)",
                confidence="likely",
            )
        ]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of zero is −inf",
            explanation=f"The argument of {site.short} (from {site.inputs[0].label}) is exactly "
            f"{'−1' if site.short == 'log1p' else '0'} at {count(at.count, 'element')}"
            + (f"; it comes from {source}, which underflows or rounds there." if source else "."),
            exact=1.0,
            extra=[
                ("bad elements", at.count),
                ("input at the bad elements", values(at.minimum, at.maximum)),
            ],
            fixes=[
                *(advice if source == "sigmoid" else []),
                *guards(site, f"keep the argument of {site.short} away from its pole"),
            ],
        )


def _log_of_softmax(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if site.short not in _LOGS or _probability_source(birth) != "softmax":
            continue
        at = _at_failure(site)
        if site.short == "xlogy" or _masked_before(birth):
            # p·log(p) is 0 where p is; and where −inf was put into the scores, log_softmax gives it
            # back
            continue
        if at is None or not (at.zeros or (at.maximum is not None and abs(at.maximum) < 1e-30)):
            continue
        yield birth_claim(
            rule,
            evidence,
            birth,
            title="log of softmax collapses where a probability underflows to zero",
            explanation=f"softmax gave exactly 0 at {count(at.zeros or at.count, 'element')}, and its log "
            "is −inf; log_softmax computes the same in one step and stays finite.",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("probabilities that are 0", at.zeros)],
            fixes=[
                Fix(
                    title="use log_softmax",
                    patch=log_softmax(site),
                    confidence="machine" if log_softmax(site) else "likely",
                    remedy=Remedy(kind="log-softmax", location=site.location)
                    if site.location is not None
                    else None,
                )
            ],
        )


def _masked_before(birth: Birth) -> bool:
    """The softmax was given −inf: its zeros are meant."""
    softmax = next((op for op in birth.upstream if op.short in ("softmax", "safe_softmax")), None)
    return softmax is not None and any(fact.neginf for fact in softmax.inputs)


def _is_log_pole(site: OpFacts, at: ValuesAt) -> bool:
    if site.short == "log1p":
        return at.minimum == -1.0
    if site.short == "logit":
        return at.zeros > 0 or at.maximum == 1.0
    return at.zeros > 0


def _probability_source(birth: Birth) -> str | None:
    """ "softmax" or "sigmoid" if that is what, up to clamps, casts and tiny offsets, made the log's
    argument."""
    passed = (
        "clamp",
        "clamp_min",
        "clamp_max",
        "to_copy",
        "copy",
        "clone",
        "add",
        "rsub",
        "gather",
        "index",
        "squeeze",
        "slice",
        "max",
        "contiguous",
    )
    for op in birth.upstream:
        if op.short in ("softmax", "safe_softmax"):
            return "softmax"
        if op.short == "sigmoid":
            return "sigmoid"
        if op.short not in passed:
            return None
    return None


def _negative(value: object) -> bool:
    return isinstance(value, (int, float)) and value < 0


RULES = (
    Rule(
        code="ND201",
        name="domain-error",
        severity="critical",
        summary="log, sqrt, pow, acos… of a value outside its domain",
        check=_domain_error,
        doc="""\
## What it checks
An op turned finite values into NaN or inf, and the values it was given at exactly those elements lie outside the
domain of the function: sqrt or log of a negative number, acos of 1.0000001, pow(−2, 0.5), atanh(1).

## Why it matters
Rounding is enough: a cosine of 1.0000001, a variance of −1e-9 from E[x²] − E[x]².

## Example
    angle = torch.acos((a * b).sum(-1))        # normalised vectors, 1.0000001 after rounding

## Fix
Keep the argument inside the domain (clamp), with a margin where the derivative is infinite at its border.

## Options
None.

## See also
ND206 log-of-zero, ND301 infinite-gradient
""",
    ),
    Rule(
        code="ND202",
        name="division-by-zero",
        severity="critical",
        summary="x/0 or 0/0: an empty count, a zero norm",
        check=_division_by_zero,
        doc="""\
## What it checks
A division, reciprocal, rsqrt or negative power whose divisor is exactly zero at the elements that went bad.

## Why it matters
Counts of positives, norms and variances are zero once in a while. The inf from x/0 often becomes NaN only some
lines later (inf/inf, 0 · inf); the division is the cause.

## Example
    ratio = n_all / n_pos        # a batch without positives

## Fix
Keep the divisor away from zero: clamp(min=1) for counts, clamp_min(eps) for norms. An eps that the dtype
rounds away does nothing (ND210).

## Options
None.

## See also
ND210 vanishing-epsilon, ND106 empty-reduction
""",
    ),
    Rule(
        code="ND206",
        name="log-of-zero",
        severity="critical",
        summary="log(p) with p underflowed to 0, hand-written cross entropy",
        check=_log_of_zero,
        doc="""\
## What it checks
log, log2, log10, log1p, logit or xlogy met its pole (log of exactly 0), and the −inf reached the loss.

## Why it matters
A sigmoid rounds to exactly 0 below about −104 in float32 (−17 in float16), and to exactly 1 above 17; a
hand-written cross entropy meets that as soon as the model is confident. 0 · log(0) is NaN.

## Example
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()

## Fix
Use the loss that takes logits; where a probability is needed, clamp it by an eps the dtype can hold.

## Options
None.

## See also
ND303 log-of-softmax, ND210 vanishing-epsilon
""",
    ),
    Rule(
        code="ND303",
        name="log-of-softmax",
        severity="critical",
        summary="log(softmax(x)) collapses; log_softmax is the cure",
        check=_log_of_softmax,
        doc="""\
## What it checks
The log of a softmax (directly, or after a cast, an index or a tiny offset) where a probability is exactly 0.

## Why it matters
softmax underflows to 0 when a logit lies more than about 104 below the largest (float32; 17 in float16). The log
is −inf there, and the gradient NaN. log_softmax subtracts before it exponentiates and never underflows.

## Example
    loss = -torch.log(torch.softmax(logits, -1))[range(n), y].mean()

## Fix
    loss = -torch.log_softmax(logits, -1)[range(n), y].mean()        # or F.cross_entropy(logits, y)

## Options
None.

## See also
ND206 log-of-zero
""",
    ),
)
