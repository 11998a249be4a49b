"""## What it checks
The largest float16 activation of each module, on the last step's batch: within a factor of 4 of
65504.

## Why it matters
The run still works. A rare token, a larger batch or a hundred more steps may overflow; the inf
becomes NaN in the next norm.

## Example
A residual stream of 3e4.

## Fix
Run the module in float32 or the run in bfloat16. `nanodoc run --frames` prints every module's
range.

## See also
ND203 low-precision-overflow
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.amp.underflow import SHOWN
from nanodoc.rules.base import count
from nanodoc.rules.forward.floats import LARGEST

_NEAR = 4.0  # RULES: within 4x of the dtype's largest number


@rule(
    "ND409",
    "low-headroom",
    "info",
    "activations near float16's largest number",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if facts is None or evidence.trip is not None or evidence.failure is not None:
        return
    near = [
        value
        for value in facts.headroom
        if value.dtype == "float16"
        and LARGEST["float16"] / _NEAR <= value.absmax <= LARGEST["float16"]
    ]
    if not near:
        return
    first = near[0]
    listed = "; ".join(
        f"{value.module or 'the model'} {value.absmax:.4g}" for value in near[:SHOWN]
    )
    yield Claim(
        root=("headroom",),
        specificity=Specificity.FAMILY,
        stage=Stage.PRECISION,
        position=1,
        finding=rule.finding(
            confidence=confidence(
                0.5, first.absmax / LARGEST["float16"], 0.3 if first.location is not None else 0.0
            ),
            title=f"activations reach {first.absmax:.4g} in float16, whose largest number is 65504",
            explanation=f"{count(len(near), 'module')} within a factor of {_NEAR:g} of it: "
            f"{listed}. They would be the next to overflow.",
            culprit=Culprit(
                kind="op",
                op=first.op,
                module=first.module,
                module_type=first.module_type,
                location=first.location,
            ),
            phase="forward",
            step=None,
            evidence=(
                ("largest activation", first.absmax),
                ("headroom", LARGEST["float16"] / first.absmax),
            ),
            fixes=(
                Fix(
                    title=f"run {first.module or 'it'} in float32, or use bfloat16",
                    confidence="maybe",
                ),
            ),
        ),
    )
