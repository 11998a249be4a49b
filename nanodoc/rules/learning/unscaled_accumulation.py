"""## What it checks
Several backward() calls from one line before one optimizer step, with no loss divided by their
number. A warning for four or more micro-batches if the loss has not come down, else an info.
nanodoc records the calls of a train_step, their order and their tensors.

## Why it matters
The gradient is larger by the number of micro-batches, which changes SGD's effective learning rate
and the effect of clipping.

## Example
    for part in parts:
        loss_fn(model, part).backward()
    optimizer.step()

## Fix
    (loss_fn(model, part) / len(parts)).backward()

## See also
ND608 accumulating-gradients
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import (
    SUMMED,
)
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim


@rule(
    "ND623",
    "unscaled-accumulation",
    "warning",
    "losses of micro-batches summed, not averaged",
    thresholds={"micro-batches": Threshold(4.0, "fewest summed losses for a warning")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, SUMMED)
    if misuse is not None and misuse.times >= 2:
        yield misuse_claim(
            rule,
            evidence,
            misuse,
            # a sum may be meant, with a learning rate to match: where it hurts, the loss does not
            # come down
            severity=rule.severity
            if misuse.times >= check.limit(evidence, "micro-batches")
            and late_loss(evidence.losses) > NO_BETTER * evidence.losses[0]
            else "info",
            title=f"losses of {misuse.times} micro-batches are summed, not averaged",
            explanation=f"backward() runs {misuse.times} times from the same line before each "
            "optimizer step, and no loss is divided by that number: the gradient is "
            f"{misuse.times} "
            "times that of one batch of the same size.",
            fix=f"use (loss / {misuse.times}).backward(), or a learning rate meant for the sum",
            weight=0.5,
        )
