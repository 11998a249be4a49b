"""ND203, ND204, ND211, ND305: values too large for the dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts, ValuesAt
from nanodoc.rules.base import birth_claim
from nanodoc.rules.crash.failures import failure_claim
from nanodoc.rules.forward.floats import LARGEST, is_half
from nanodoc.rules.forward.guards import guards

_CONSTANTS = ("constant", "full", "full_like", "scalar_tensor", "masked_fill", "new_full", "fill")


def half_fixes(site: OpFacts) -> list[Fix]:
    """What helps against a value that half precision can't hold: the module alone in float32, or
    bfloat16."""
    island = (
        Fix(
            title=f"run {site.module} in float32 (autocast disabled around it, its input cast up)",
            confidence="likely",
            remedy=Remedy(kind="float32-module", module=site.module),
        )
        if site.module
        else Fix(
            title="compute this in float32 (autocast disabled, arguments cast up)",
            confidence="likely",
            remedy=Remedy(kind="float32-call", location=site.location),
        )
    )
    return [
        island,
        Fix(
            title="use bfloat16, which has float32's range",
            confidence="maybe",
            remedy=Remedy(kind="bfloat16"),
        ),
    ]


def _dtype(op: OpFacts) -> str | None:
    return op.outputs[0].dtype if op.outputs else None


def _bad_dtype(op: OpFacts) -> str | None:
    return next((out.dtype for out in op.outputs if out.nonfinite), _dtype(op))


def _largest_input(op: OpFacts) -> float | None:
    return max((fact.absmax for fact in op.inputs if fact.absmax is not None), default=None)


def _finite_inputs(birth: Birth) -> bool:
    return not any(fact.nonfinite for fact in birth.op.inputs)


def _low_precision_overflow(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        dtype = _bad_dtype(site)
        if (
            birth.phase != "forward"
            or not is_half(dtype)
            or site.upcast_absmax is None
            or not _finite_inputs(birth)
        ):
            continue
        limit = LARGEST[str(dtype)]
        if site.upcast_absmax <= limit:
            continue
        largest = _largest_input(site)
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} overflows {dtype}",
            explanation=f"The result reaches {site.upcast_absmax:.4g} when the same op runs in float32, "
            f"but {dtype} ends at {limit:.5g}. Its largest input is {largest:.4g}."
            if largest is not None
            else f"The result reaches {site.upcast_absmax:.4g} in float32; {dtype} ends at "
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


def _overflow(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        dtype, largest = _bad_dtype(site), _largest_input(site)
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
            explanation=f"Finite inputs of up to {largest:.4g} give a result beyond {limit:.4g}, the "
            f"largest {dtype}." + growth,
            exact=1.0
            if site.short in ("exp", "expm1", "pow", "cosh", "sinh", "mul", "square", "exp2")
            else 0.5,
            specificity=Specificity.FALLBACK,
            growth=True,
            extra=[("largest input", largest), (f"largest {dtype}", limit)],
            fixes=_bounded(site) if not growth else [],
        )


def _bounded(site: OpFacts) -> list[Fix]:
    advice = Fix(
        title="bound the argument, or work with logarithms (logsumexp, logaddexp)",
        confidence="maybe",
    )
    if site.short != "exp":
        return [*guards(site, f"bound the argument of {site.short}"), advice]
    logs = Fix(
        title="take log(sum(exp(x))) in one step: torch.logsumexp",
        remedy=Remedy(kind="logsumexp", location=site.location),
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


def overflowed(birth: Birth) -> bool:
    """Finite inputs gave inf; or NaN, with inputs so large that an intermediate (a product, a
    square) must have overflowed."""
    if not _finite_inputs(birth):
        return False
    largest = _largest_input(birth.op)
    limit = LARGEST.get(str(_bad_dtype(birth.op)), 0.0)
    return birth.kind == "inf" or (largest is not None and largest > limit**0.5)


def _growth(evidence: Evidence) -> str:
    """Says so when the loss had been growing before: then the op is where it ended, not where it
    began."""
    finite = [loss for loss in evidence.losses if loss - loss == 0]
    if len(finite) >= 2 and abs(finite[-1]) > 100 * max(abs(finite[0]), 1e-6):
        return (
            f" The loss had grown from {finite[0]:.4g} to {finite[-1]:.4g} before: look at the "
            "learning rate and the initialisation first."
        )
    return ""


def _mask_constant_overflow(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        dtype = _bad_dtype(site)
        if (
            birth.phase != "forward"
            or not is_half(dtype)
            or site.short not in ("to_copy", "copy", "add", "mul", "sub", "masked_fill")
        ):
            continue
        limit = LARGEST[str(dtype)]
        huge = [
            f
            for f in site.inputs
            if f.minimum is not None
            and f.minimum <= -limit / 4
            and (f.label in _CONSTANTS or f.label.startswith("buffer:"))
        ]
        scalar = [v for v in site.scalars.values() if isinstance(v, float) and v <= -limit / 4]
        same = [
            at.minimum
            for at in site.values_at
            if at is not None
            and _is_one_value(at)
            and at.minimum is not None
            and at.minimum <= -limit / 4
        ]
        if not (huge or scalar or same):
            continue
        value = huge[0].minimum if huge else [*scalar, *same][0]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"the mask constant {value:.4g} becomes −inf in {dtype}",
            explanation=f"{dtype} ends at ±{limit:.5g}; the constant, or a sum of two of them, is beyond "
            "it, and a row that is all −inf has no softmax.",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("mask constant", value), (f"largest {dtype}", limit)],
            fixes=[
                Fix(
                    title="mask with torch.finfo(scores.dtype).min, once, or with a boolean mask",
                    confidence="likely",
                    remedy=Remedy(
                        kind="constant", location=site.location, value=value, replacement=-limit / 2
                    )
                    if value is not None
                    else None,
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


def _is_one_value(at: ValuesAt) -> bool:
    """Several elements overflow and all hold the very same number: a constant, not an
    activation."""
    return at.count > 1 and at.minimum == at.maximum


def _backward_overflow(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if (
            birth.phase != "backward"
            or not is_half(_bad_dtype(birth.op))
            or birth.saved_nonfinite
            or birth.op.upcast_absmax is None
        ):
            continue
        limit = LARGEST[str(_bad_dtype(birth.op))]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"a gradient overflows {_bad_dtype(birth.op)} in the backward of "
            f"{birth.site.short}",
            explanation=f"The gradient reaches {birth.op.upcast_absmax:.4g} when the same op runs in "
            f"float32; {_bad_dtype(birth.op)} ends at {limit:.5g}.",
            exact=1.0 if birth.op.upcast_absmax > limit else 0.3,
            specificity=Specificity.FAMILY,
            extra=[
                ("largest gradient in float32", birth.op.upcast_absmax),
                ("largest value", limit),
            ],
            fixes=half_fixes(birth.site),
        )


RULES = (
    Rule(
        code="ND203",
        name="low-precision-overflow",
        severity="critical",
        summary="finite in float32, inf in half precision",
        check=_low_precision_overflow,
        doc="""\
## What it checks
An op in float16 or bfloat16 gave inf from finite inputs. The same op is run again on float32 copies of its
inputs: finite there means that the dtype, not the mathematics, is at fault.

## Why it matters
float16 ends at 65504. Feed-forward outputs, attention scores and squared norms of models trained in bfloat16
pass that, and the inf turns into NaN in the next normalisation.

## Example
    with torch.autocast("cuda", dtype=torch.float16):
        h = self.wo(F.relu(self.wi(x)))        # 6.6e4 → inf

## Fix
Run that module in float32 (autocast disabled around it, inputs cast up), or use bfloat16.

## Options
None.

## See also
ND204 overflow, ND305 backward-overflow
""",
    ),
    Rule(
        code="ND204",
        name="overflow",
        severity="critical",
        summary="exp, pow or a product beyond the dtype's largest value",
        check=_overflow,
        doc="""\
## What it checks
An op gave inf from finite inputs, and float32 could not have held the result either.

## Why it matters
exp(89) is beyond float32. Where the values had been growing for many steps, the op is only where it ended: the
learning rate or the initialisation is where it began, and the explanation says so.

## Example
    weight = torch.exp(log_weight)        # log_weight reached 120

## Fix
Bound the argument, or stay with logarithms (logsumexp, logaddexp).

## Options
None.

## See also
ND203 low-precision-overflow
""",
    ),
    Rule(
        code="ND211",
        name="mask-constant-overflow",
        severity="critical",
        summary="−1e9 or float32's minimum as a mask in half precision",
        check=_mask_constant_overflow,
        doc="""\
## What it checks
A constant of large magnitude (a mask's −1e9, or a sum of two masks) that becomes −inf in float16 or bfloat16,
or that torch refuses to convert.

## Why it matters
A row of the attention scores that is all −inf has no softmax: it is NaN.

## Example
    scores = scores + (1.0 - mask.half()) * -1e9

## Fix
Use torch.finfo(scores.dtype).min, once, or a boolean mask.

## Options
None.

## See also
ND205 fully-masked-softmax
""",
    ),
    Rule(
        code="ND305",
        name="backward-overflow",
        severity="critical",
        summary="gradients overflow in half precision",
        check=_backward_overflow,
        doc="""\
## What it checks
A backward op in half precision gave a non-finite gradient from finite inputs, and float32 copies of the same
inputs give a finite one.

## Why it matters
With a GradScaler the step is skipped and the scale halved, which is healthy in the first steps; without one, or
when it happens at every scale, the weights are lost.

## Example
A loss scale of 2¹⁶ times a gradient of 2.

## Fix
Lower the initial scale, run the module in float32, or use bfloat16.

## Options
None.

## See also
ND203 low-precision-overflow
""",
    ),
)
