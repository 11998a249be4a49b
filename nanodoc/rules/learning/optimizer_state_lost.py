"""## What it checks
An optimizer that should keep moments or momentum but has none when it steps, step after step.
nanodoc records the calls of a train_step, their order and their tensors.

## Why it matters
Adam without its moments changes every weight by the full learning rate; momentum never builds up.

## Example
    def train_step(model, batch):
        optimizer = torch.optim.Adam(model.parameters())

## Fix
Create it once; load its state when you resume.

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
    "an optimizer that loses its state at every step",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, FRESH_OPTIMIZER)
    if misuse is not None:
        yield misuse_claim(
            rule,
            evidence,
            misuse,
            title="every step starts with an optimizer that has no state",
            explanation="The optimizer that stepped had no moments or momentum although the run "
            "had stepped before: each time, it is created again or its state is dropped. "
            "Adam without its moments takes steps of the full learning rate in every "
            "direction.",
            fix="create the optimizer once, outside the step",
        )
