"""## What it checks
Gradients that backward() made and zero_grad() took away before the optimizer stepped: all of them,
those of all micro-batches but the last, or those that one of several losses alone gives. The calls
of a train_step are watched: which came, in which order, on which tensors.

## Why it matters
Nothing fails, and nothing is learnt, or a part of the batch only.

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
            "optimizer stepped on what it takes away: the step uses the last micro-batch only.",
            fix="step after each backward(), or call zero_grad() once a step: before its first "
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
            "was gone: zero_grad() came in between, so the step moves nothing but weight decay "
            "and momentum."
        )
    return (
        f"In {misuse.steps} of {misuse.watched} steps one of several backward passes gave these "
        "parameters their gradients, and zero_grad() took them away before the optimizer stepped: "
        "they learnt nothing there, and what else that backward gave was lost, too."
    )
