"""## What it checks
float16 autocast without a GradScaler (or with a disabled one), and parameters most of whose
gradient float16 rounds to zero (see ND306). If no gradients are lost, nothing is reported.

## Why it matters
float16 has no number between 0 and 6e-8. Gradients of a mean over many elements are often smaller,
and the layers they belong to silently stop learning.

## Example
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()

## Fix
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()

or bfloat16, which needs no scaler.

## See also
ND306 gradient-underflow
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
    "ND405",
    "half-without-scaler",
    "critical",
    "float16 autocast without a GradScaler, and gradients lost to it",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    hurt = hurt_by_underflow(evidence)
    facts = evidence.amp_facts
    if not hurt or facts is None or facts.dtype != "float16" or facts.scaler_enabled:
        return
    worst = hurt[0]
    backward = next((call.place for call in reversed(facts.calls) if call.kind == "backward"), None)
    off = "its GradScaler is disabled" if facts.has_scaler else "there is no GradScaler"
    whole = worst.share > 0.99
    yield underflow_claim(
        rule,
        evidence,
        hurt,
        severity=rule.severity if whole else "warning",
        location=backward or facts.asked_at,
        kind="op" if backward is not None else "config",
        title=f"float16 autocast without a loss scale: {'all' if whole else f'{worst.share:.0%}'} "
        f"of the gradient of {worst.name} is rounded to zero",
        explanation=f"Autocast computes in float16 and {off}, so gradient elements below 6e-8 "
        f"become zero in backward. In float32 {'they are all' if whole else 'they are'} "
        "nonzero.",
        fixes=(
            Fix(
                title="scale the loss with torch.amp.GradScaler, or use bfloat16",
                patch="scaler.scale(loss).backward()",
                confidence="likely",
            ),
        ),
    )
