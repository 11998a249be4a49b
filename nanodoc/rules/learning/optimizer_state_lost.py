"""## What it checks
An optimizer that keeps moments or momentum and has none when it steps, in step after step. The
calls of a train_step are watched: which came, in which order, on which tensors.

## Why it matters
Adam without its moments moves every weight by the full learning rate; momentum never builds up.

## Example
    def train_step(model, batch):
        optimizer = torch.optim.Adam(model.parameters())

## Fix
Make it once; load its state when you resume.

## See also
ND507 stale-optimizer
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import (
    FRESH_OPTIMIZER,
)
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim


@rule(
    "ND626",
    "optimizer-state-lost",
    "critical",
    "an optimizer without its state at every step",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, FRESH_OPTIMIZER)
    if misuse is not None:
        yield misuse_claim(
            rule,
            evidence,
            misuse,
            title="every step begins with an optimizer that has no state",
            explanation="The optimizer that stepped had no moments or momentum although the run "
            "had stepped before: it is made anew, or its state is dropped, each time. Adam "
            "without its moments takes steps of the full learning rate in every direction.",
            fix="make the optimizer once, outside the step",
        )
