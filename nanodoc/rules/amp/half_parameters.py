"""## What it checks
"ValueError: Attempting to unscale FP16 gradients." nanodoc lists the optimizer's float16
parameters, with the line that made them float16: `model.half()`, a layer built with
dtype=torch.float16, or the parameter itself.

## Why it matters
Mixed precision keeps float32 parameters and casts them for each op. The error is raised at the
first step, and its traceback ends inside torch.

## Example
    model = Net().half()
    scaler = torch.amp.GradScaler("cuda")

## Fix
Leave the parameters in float32; the autocast context does the rest.

## See also
ND616 optimizer-made-nan
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.amp import HalfParameter
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.amp.underflow import (
    SHOWN,
)
from nanodoc.rules.base import count
from nanodoc.rules.crash.failure_claims import failure_claim


@rule(
    "ND406",
    "half-parameters",
    "critical",
    "float16 parameters under a GradScaler",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts, failure = evidence.amp_facts, evidence.failure
    if (
        facts is None
        or failure is None
        or "Attempting to unscale FP16 gradients" not in failure.message
        or not facts.half_parameters
    ):
        return
    half = facts.half_parameters
    by_place: dict[SourceSpan | None, list[HalfParameter]] = {}
    for tensor in half:
        by_place.setdefault(tensor.made_at, []).append(tensor)
    place, members = max(by_place.items(), key=lambda item: len(item[1]))
    names = ", ".join(tensor.name for tensor in half[:SHOWN]) + (
        f" and {len(half) - SHOWN} more" if len(half) > SHOWN else ""
    )
    claim = failure_claim(
        rule,
        evidence,
        title=f"{count(len(half), 'trainable parameter')} in float16, which a GradScaler refuses "
        "to "
        "unscale",
        explanation=f"{names}: autocast expects float32 parameters and casts them for each op. "
        "Unscaling a float16 gradient would lose exactly what the scale had saved.",
        specificity=Specificity.SPECIAL,
        extra=[("float16 parameters", [tensor.name for tensor in half[:16]])],
        fixes=[
            Fix(
                title="keep the parameters in float32 (no .half(), no dtype=torch.float16) and let "
                "autocast cast",
                confidence="likely",
            )
        ],
    )
    first = members[0]
    culprit = Culprit(
        kind="parameter",
        parameter=first.name,
        module=first.module,
        module_type=first.module_type,
        location=place,
    )
    finding = replace(
        claim.finding,
        culprit=culprit,
        phase="setup",
        confidence=confidence(0.8, 0.5 if place is not None else 0.0),
    )
    yield replace(claim, finding=finding)
