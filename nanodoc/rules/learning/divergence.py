"""## What it checks
A run whose loss, gradients or weights had grown out of all proportion before a step broke, or whose
finite loss kept growing more than tenfold. The steps since an earlier checkpoint are run again as
they were, with a tenth of the learning rate and with clipped gradients: only where they stay finite
then is the learning rate blamed, and not the op that finally overflowed. Where they can't be run
again, only a hundredfold loss and enormous values count.

## Why it matters
Each update makes the next gradient larger, until some op passes the end of the dtype. Guarding that
op moves the failure one line on.

## Example
    torch.optim.SGD(model.parameters(), lr=10.0)

## Fix
Lower the learning rate, clip the gradient norm, or shrink the initial weights.

## Options
None here; `--checkpoint-every` and `--no-checkpoints` decide how far back the run can be repeated.

## See also
ND204 overflow, ND616 optimizer-made-nan
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.divergence_claims import by_clipping_alone, divergence_claims


@rule(
    "ND606",
    "divergence",
    "critical",
    "the loss grew until it overflowed, or without end: the learning rate",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if not by_clipping_alone(evidence.pattern):
        yield from divergence_claims(rule, evidence)
