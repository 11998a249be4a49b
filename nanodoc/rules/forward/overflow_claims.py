"""ND203, ND204, ND211, ND305: values too large for the dtype."""

from __future__ import annotations

from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import Bfloat16, Float32Call, Float32Module
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.rules.forward.floats import LARGEST


def half_fixes(site: OpFacts) -> list[Fix]:
    """What helps against a value that half precision can't hold: the module alone in float32, or
    bfloat16."""
    island = (
        Fix(
            title=f"run {site.module} in float32 (autocast disabled around it, its input cast up)",
            confidence="likely",
            remedy=Float32Module(module=site.module),
        )
        if site.module
        else Fix(
            title="compute this in float32 (autocast disabled, arguments cast up)",
            confidence="likely",
            remedy=Float32Call(location=site.location),
        )
    )
    return [
        island,
        Fix(
            title="use bfloat16, which has float32's range",
            confidence="maybe",
            remedy=Bfloat16(),
        ),
    ]


def _dtype(op: OpFacts) -> str | None:
    return op.outputs[0].dtype if op.outputs else None


def bad_dtype(op: OpFacts) -> str | None:
    return next((out.dtype for out in op.outputs if out.nonfinite), _dtype(op))


def largest_input(op: OpFacts) -> float | None:
    return max((fact.absmax for fact in op.inputs if fact.absmax is not None), default=None)


def finite_inputs(birth: Birth) -> bool:
    return not any(fact.nonfinite for fact in birth.op.inputs)


def overflowed(birth: Birth) -> bool:
    """Finite inputs gave inf; or NaN, with inputs so large that an intermediate (a product, a
    square) must have overflowed."""
    if not finite_inputs(birth):
        return False
    largest = largest_input(birth.op)
    limit = LARGEST.get(str(bad_dtype(birth.op)), 0.0)
    return birth.kind == "inf" or (largest is not None and largest > limit**0.5)
