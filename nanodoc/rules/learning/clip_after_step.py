"""## What it checks
clip_grad_norm_ or clip_grad_value_ on gradients that the optimizer, or a loop that moves the
weights by hand, has already used, or where there are none yet: after zero_grad() and before
backward(). A clip that is given no parameters at all: an
iterator that the optimizer's constructor has used up, a filter that nothing passes. The calls of a
train_step are watched: which came, in which order, on which tensors.

## Why it matters
The clipping has no effect; a run that needs it will blow up all the same.

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
            explanation="The weights have already been moved by the gradients as they were; "
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
            explanation="At this place there are none: they have been cleared, and backward() "
            "comes later. The optimizer steps on gradients that nobody has clipped.",
            fix=_FIX,
        )
    nothing = loop_misuse(evidence, CLIPPED_NOTHING)
    if nothing is not None:
        yield misuse_claim(
            rule,
            evidence,
            nothing,
            title="a clip of gradients is given no parameters",
            explanation="What it was handed is empty, as an iterator is that something else has "
            "gone through before. The optimizer steps on gradients that nobody has clipped.",
            fix="make a list of the parameters, and give that to both",
        )
