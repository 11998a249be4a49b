"""## What it checks
Like ND606, a run that had grown out of all proportion; here the steps stay finite when the gradient
norm is clipped, but not with a tenth of the learning rate.

## Why it matters
A recurrent net over many steps, or a deep stack with large initial weights, has gradients that grow
exponentially with its depth. One such step is enough.

## Example
    nn.init.normal_(self.recurrent.weight, std=0.5)

## Fix
Clip the gradient norm, shrink the initial weights, normalise between the layers.

## Options
None here; `--checkpoint-every` and `--no-checkpoints` control how far back the run can be repeated.

## See also
ND606 divergence
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.divergence_claims import by_clipping_alone, divergence_claims


@rule(
    "ND601",
    "exploding-gradients",
    "critical",
    "single gradients too large for any learning rate",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if by_clipping_alone(evidence.pattern):
        yield from divergence_claims(rule, evidence)
