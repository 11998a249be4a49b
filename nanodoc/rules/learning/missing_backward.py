"""## What it checks
A train_step that never calls backward(), while no parameter gets a gradient or changes in any other
way.

## Why it matters
An optimizer skips parameters without gradients: the weights keep their initial values, and the loss
only varies with the batches.

## Example
    loss = F.cross_entropy(model(x), y)
    optimizer.step()

## Fix
    loss.backward()
    optimizer.step()

## See also
ND628 missing-step
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import NEVER_DIFFERENTIATED
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import calls_of
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim


@rule(
    "ND640",
    "missing-backward",
    "critical",
    "nothing is ever differentiated",
    needs=("loop", "stats"),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse, stats = loop_misuse(evidence, NEVER_DIFFERENTIATED), evidence.stats
    if misuse is None or stats is None or not evidence.optimizer_sites or evidence.moved_by_hand:
        return
    # by gradients of one's own, or without any, as an evolution strategy does it
    if any(evidence.grad_norms) or any(p.moved for p in stats.parameters):
        return
    steps = evidence.loop.optimizer_steps if evidence.loop is not None else 0
    yield misuse_claim(
        rule,
        evidence,
        replace(misuse, location=misuse.location or _loss(evidence)),
        title="no gradients are ever computed: the loop has no backward()",
        explanation=f"In {count(misuse.steps, 'step')} no backward() ran and no parameter got a "
        "gradient"
        + (", and the optimizer's step() skips parameters without one" if steps else "")
        + ": no parameter has changed.",
        fix="call loss.backward() before optimizer.step()",
    )


def _loss(evidence: Evidence) -> SourceSpan | None:
    """The last number that a step makes with gradients."""
    calls = calls_of(evidence)
    scalars = [c for c in calls.calls if c.shape == () and c.requires_grad] if calls else []
    return scalars[-1].site if scalars else None
