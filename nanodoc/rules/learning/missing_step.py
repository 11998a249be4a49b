"""## What it checks
A train_step that calls backward() but never an optimizer's step(), while no parameter changes in
any other way.

## Why it matters
The loss only varies with the batches.

## Example
    loss.backward()
    scheduler.step()

## Fix
    optimizer.step()

## See also
ND640 missing-backward; ND622 discarded-gradients
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import NEVER_STEPPED
from nanodoc.rules.base import count
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim


@rule(
    "ND628",
    "missing-step",
    "critical",
    "no optimizer ever steps",
    needs=(
        "loop",
        "stats",
    ),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, NEVER_STEPPED)
    if misuse is None or not evidence.optimizer_sites or evidence.moved_by_hand:
        return
    stats = evidence.stats
    # moved by hand, or by an optimizer of one's own
    if stats is None or any(p.moved for p in stats.parameters):
        return
    yield misuse_claim(
        rule,
        evidence,
        misuse,
        title="no optimizer ever steps",
        explanation=f"backward() ran in {count(misuse.steps, 'step')}, but no optimizer's step() "
        "was called: no parameter has changed.",
        fix="call optimizer.step() after backward()",
    )
