"""## What it checks
clip_grad_norm_ or clip_grad_value_ on gradients that the optimizer, or a loop that updates the
weights by hand, has already used, or before there are any: after zero_grad() and before backward().
Also a clip that gets no parameters at all: an iterator that the optimizer's constructor exhausted,
a filter that matches nothing. nanodoc records the calls of a train_step, their order and their
tensors.

## Why it matters
The clipping has no effect; a run that needs it will still blow up.

## Example
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## Fix
Clip between backward() and step().

## See also
ND403 clip-before-unscale, ND601 exploding-gradients
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import CLIPPED_EARLY, CLIPPED_LATE, CLIPPED_NOTHING
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim

_FIX = "clip between backward() and optimizer.step()"


@rule(
    "ND624",
    "clip-after-step",
    "critical",
    "gradients are clipped after the step that used them",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, CLIPPED_LATE)
    if misuse is not None:
        yield misuse_claim(
            rule,
            evidence,
            misuse,
            title="gradients are clipped after the step that used them",
            explanation="The weights have already been updated with the unclipped gradients; "
            "clipping them afterwards changes nothing.",
            fix=_FIX,
        )
    early = loop_misuse(evidence, CLIPPED_EARLY)
    if early is not None:
        yield misuse_claim(
            rule,
            evidence,
            early,
            title="gradients are clipped before the backward that makes them",
            explanation="There are no gradients yet: they have been cleared, and backward() "
            "comes later. The optimizer steps on unclipped gradients.",
            fix=_FIX,
        )
    nothing = loop_misuse(evidence, CLIPPED_NOTHING)
    if nothing is not None:
        yield misuse_claim(
            rule,
            evidence,
            nothing,
            title="gradient clipping gets no parameters",
            explanation="Its argument is empty, for example an iterator that something else has "
            "already exhausted. The optimizer steps on unclipped gradients.",
            fix="make a list of the parameters, and pass it to both",
        )
