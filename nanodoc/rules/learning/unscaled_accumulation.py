"""## What it checks
Several backward() from one line before one optimizer step, none of whose losses was divided. A
warning from four micro-batches on if the loss has not come down, else an info. The calls of a
train_step are watched: which came, in which order, on which tensors.

## Why it matters
The gradient is as many times larger as there are micro-batches, and with it the effective learning
rate of SGD and what clipping does.

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
    thresholds={"micro-batches": Threshold(4.0, "summed losses from which on it is a warning")},
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
            fix=f"(loss / {misuse.times}).backward(), or a learning rate meant for the sum",
            weight=0.5,
        )
