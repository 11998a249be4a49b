"""## What it checks
A run whose loss, gradients or weights had grown out of all proportion before a step broke, or whose
finite loss ended at twice its start and more (five times in the first thirty steps). The steps
since an earlier checkpoint are run again on the same batches: as they were, with weights that do
not move, with smaller and smaller learning rates, with clipped gradients, and with first weights
that are no wider than sqrt(2 / fan_in) (He et al. 2015). Inputs that ND107 would tell of are
standardised, with the learning rate as it is: where that does far better than a tenth of the rate,
they are told, at the line that makes them. The learning rate is blamed where a
smaller one cures, and the batches alone would not have cost as much; not the op that finally
overflowed. An op that made it of weights that hardly moved is ND204's.

A finite loss must have a reason to fall: one of torch's losses against targets that no network
computes, and one optimizer or none. Without that, only weights that grew a hundredfold with the
loss count, or a cross entropy of three times ln C, which is worse than guessing, or weights that no
optimizer holds, that have grown three times as far as the others and more, and that a line of the
step writes: a target network or a momentum encoder that is no average.

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
