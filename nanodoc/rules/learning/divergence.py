"""## What it checks
A run whose loss, gradients or weights had grown out of all proportion before a step broke, or whose
finite loss ended at twice its first value or more (five times in the first thirty steps). The steps
since an earlier checkpoint are re-run on the same batches: unchanged, with frozen weights, with
smaller and smaller learning rates, with clipped gradients, and with initial weights no wider than
sqrt(2 / fan_in) (He et al. 2015). Inputs that ND107 would report are standardised, at the same
learning rate: if that does far better than a tenth of the rate, the inputs are reported, at the
line that makes them. If a smaller learning rate cures the run and the batches alone do not explain
the loss, the learning rate is reported, not the op that finally overflowed. An op that overflows
although the weights hardly changed is reported by ND204.

A loss is reported, too, that is a hundred times its start below zero, falls as fast in the second
half of the run as in the first, while the weights have grown to twice their norm; not of several
optimizers, and not where rewards or advantages weigh it. The term that is farthest below zero is
named.

A finite loss counts only if it is expected to fall: one of torch's losses against targets that no
network computes, and at most one optimizer. Otherwise a run is reported only for weights that grew
a hundredfold along with the loss; for a cross entropy of three times ln C, which is worse than
guessing; or for weights outside the optimizers that a line of the step writes and that grew at
least three times as much as the others: a target network or a momentum encoder that is not an
average.

## Why it matters
Each update makes the next gradient larger, until some op overflows the dtype. Guarding that op
moves the failure to the next line.

## Example
    torch.optim.SGD(model.parameters(), lr=10.0)

## Fix
Lower the learning rate, clip the gradient norm, or shrink the initial weights.

## Options
None here; `--checkpoint-every` and `--no-checkpoints` control how far back the run can be repeated.

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
    "the loss grew until it overflowed, or kept growing: the learning rate",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if not by_clipping_alone(evidence.pattern):
        yield from divergence_claims(rule, evidence)
