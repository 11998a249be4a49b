"""## What it checks
clip_grad_norm_, clip_grad_value_, or a clip written by hand, on gradients of a scaled loss that
have not been unscaled yet. It is reported only if the clip changed something: the norm it saw was
above its limit.

## Why it matters
The limit is compared with a norm that is too large by the loss scale (65536 at first), so nearly
every step is clipped to almost nothing; and as the scale changes, so does the effective learning
rate. No error is raised.

## Example
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)

## Fix
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## See also
ND404 scaler-call-order
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import UnscaleFirst
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.amp import (
    CLIPPED_SCALED,
)
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.amp.misuses import misuse_claim, misuses_of


@rule(
    "ND403",
    "clip-before-unscale",
    "critical",
    "gradients clipped while still multiplied by the loss scale",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for misuse in misuses_of(evidence, CLIPPED_SCALED):
        if misuse.clip == "written by hand":
            numbers = (
                "The gradients are changed by something other than a constant factor before they "
                "are divided by the scale."
            )
        else:
            what = "norm" if misuse.clip == "norm" else "largest element"
            scale, norm, limit = misuse.scale or 1.0, misuse.norm or 0.0, misuse.limit or 0.0
            numbers = (
                f"The {what} seen here is {norm:.4g}; divided by the loss scale of {scale:g} it "
                f"is {norm / scale:.3g}. After clipping to {limit:g}, they are divided by the "
                f"scale as well, so the optimizer gets gradients of at most {limit / scale:.3g}."
            )
        yield misuse_claim(
            rule,
            evidence,
            misuse,
            title="gradients are clipped while they are still multiplied by the loss scale",
            explanation=numbers,
            extra=[(f"gradient {misuse.clip}, scaled", misuse.norm), ("limit", misuse.limit)],
            fix=Fix(
                title="unscale the gradients first",
                patch="scaler.unscale_(optimizer)",
                confidence="likely",
                remedy=UnscaleFirst(),
            ),
        )
