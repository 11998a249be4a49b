"""## What it checks
At the end of a run with float16, the last batch is run once more, and every op that makes float16
values is repeated on float32 copies of its inputs. An element that is zero in float16 but not in
float32 was flushed. A parameter is reported if more than half of the nonzero elements of its
gradient are flushed and they make up more than a tenth of the gradient's norm.

## Why it matters
A gradient that is rounded to zero teaches nothing. With a healthy loss scale only a few percent are
lost (Micikevicius et al., Mixed Precision Training, 2018); a large share means that the scale is
too low, or that one module's gradients are tiny.

## Example
A scale that collapsed to 1 because another module overflows.

## Fix
Find out what keeps the scale low; run the module in float32; or use bfloat16.

## Options
A run whose loss has fallen below a hundredth of its first value is not checked: its gradients are
tiny because it has converged.

## See also
ND405 half-without-scaler, ND402 collapsing-scale
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.amp.underflow import (
    hurt_by_underflow,
    underflow_claim,
)


@rule(
    "ND306",
    "gradient-underflow",
    "warning",
    "gradients that float16 rounds to zero",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    hurt = hurt_by_underflow(evidence)
    facts = evidence.amp_facts
    if not hurt or facts is None or not facts.scaler_enabled:
        return
    scale = facts.steps[-1].scale if facts.steps else None
    worst = hurt[0]
    yield underflow_claim(
        rule,
        evidence,
        hurt,
        severity="warning",
        location=worst.location,
        kind="op",
        title=f"{worst.share:.0%} of the gradient of {worst.name} is rounded to zero in "
        f"{worst.dtype}",
        explanation=f"At a loss scale of {scale:g} the elements are below 6e-8, {worst.dtype}'s "
        f"smallest number; in float32 they are not zero and make up {worst.lost_norm:.0%} of "
        "the "
        "gradient's norm."
        if scale is not None
        else "The elements are below 6e-8, float16's smallest number; in float32 they are not "
        "zero.",
        fixes=(
            Fix(
                title="run the module in float32, use bfloat16, or find out why the loss scale is "
                "this low",
                confidence="maybe",
            ),
        ),
    )
