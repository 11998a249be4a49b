"""## What it checks
A positive loss more than ten times the median of the ten steps before it and of the ten after it,
in runs of 40 steps and more.

## Why it matters
One odd batch can undo the work of many steps; a spike that does not come back is a divergence.

## Fix
Look at the batch; clip the gradient norm.

## See also
ND606 divergence
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence

_AROUND = 10

_SHORTEST = 40


@rule(
    "ND615",
    "loss-spike",
    "info",
    "a single loss ten times those around it",
    thresholds={"times": Threshold(10.0, "a loss over the median of the ten steps around it")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    losses = evidence.losses
    if len(losses) < _SHORTEST or not all(math.isfinite(loss) and loss > 0 for loss in losses):
        return
    for step in range(_AROUND, len(losses) - _AROUND):
        before, after = (
            statistics.median(losses[step - _AROUND : step]),
            statistics.median(losses[step + 1 : step + 1 + _AROUND]),
        )
        if losses[step] > check.limit(evidence, "times") * max(before, after):
            yield Claim(
                root=("spike",),
                specificity=Specificity.FALLBACK,
                stage=Stage.OUTCOME,
                scope=Scope.MODEL,
                finding=rule.finding(
                    confidence=confidence(
                        0.6, 0.5 if losses[step] > 100 * max(before, after) else 0.1
                    ),
                    title=f"the loss jumped to {losses[step]:.3g} at step {step} and came back",
                    explanation=f"The steps around it are at {before:.3g} and {after:.3g}: one "
                    "batch that "
                    "is unlike the others, or one update that was too large.",
                    culprit=Culprit(kind="data"),
                    phase="forward",
                    step=step,
                    evidence=(("loss", losses[step]), ("before", before), ("after", after)),
                    fixes=(
                        Fix(
                            title=f"look at the batch of step {step}; clip the gradient norm",
                            confidence="maybe",
                        ),
                    ),
                ),
            )
            return
