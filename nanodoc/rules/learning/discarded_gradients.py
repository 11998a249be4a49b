"""## What it checks
Gradients that backward() made and zero_grad() cleared before the optimizer stepped: all of them,
those of all micro-batches but the last, or those that only one of several losses gives. nanodoc
records the calls of a train_step, their order and their tensors.

## Why it matters
Nothing fails, but the model learns nothing, or only from part of the batch.

## Example
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()

## Fix
Clear before backward() or after step().

## See also
ND608 accumulating-gradients
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import (
    DISCARDED,
    DROPPED,
    EARLY,
    LoopMisuse,
)
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim


@rule(
    "ND622",
    "discarded-gradients",
    "critical",
    "gradients are cleared before they are used",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, DISCARDED)
    if misuse is not None:
        yield misuse_claim(
            rule,
            evidence,
            misuse,
            title=_title(misuse),
            explanation=_why(misuse),
            fix="call zero_grad() before backward() or after step(), not between them",
        )
    early = loop_misuse(evidence, EARLY)
    if early is not None and misuse is None:
        yield misuse_claim(
            rule,
            evidence,
            early,
            title="the optimizer steps before backward(), and its gradients are cleared by then",
            explanation="In each iteration the step comes first. What backward() then gives is "
            "cleared in the next iteration before its step, and never used: only weight decay and "
            "momentum change the weights.",
            fix="call zero_grad(), backward() and step() in this order",
        )
    dropped = loop_misuse(evidence, DROPPED)
    if dropped is not None and misuse is None:
        yield misuse_claim(
            rule,
            evidence,
            dropped,
            severity="warning",
            title=f"the gradients of all but the last of {dropped.times} backward passes are "
            "cleared before the step",
            explanation="zero_grad() comes between the backward passes of one step, and no "
            "optimizer stepped before it: the step uses only the last micro-batch.",
            fix="step after each backward(), or call zero_grad() once per step: before its first "
            "backward(), or after step()",
        )


def _title(misuse: LoopMisuse) -> str:
    if not misuse.parameters:
        return "gradients are cleared after backward() and before the step that should use them"
    more = f" and {len(misuse.parameters) - 1} more" if len(misuse.parameters) > 1 else ""
    return f"all gradients of {misuse.parameters[0]}{more} are cleared before the step"


def _why(misuse: LoopMisuse) -> str:
    if not misuse.parameters:
        return (
            "When the optimizer stepped, every gradient that backward() had given its parameters "
            "was gone: zero_grad() came in between, so only weight decay and momentum change the "
            "weights."
        )
    return (
        f"In {misuse.steps} of {misuse.watched} steps one of several backward passes gave these "
        "parameters their gradients, and zero_grad() cleared them before the optimizer stepped: "
        "they learned nothing in these steps, and the other gradients of that backward were lost "
        "too."
    )
