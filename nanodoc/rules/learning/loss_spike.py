"""## What it checks
A positive loss more than ten times the median of the ten steps before it and of the ten after it,
in runs of at least 40 steps. Not reported if such jumps repeat and jumps of half that size are at
least as frequent: then the batches simply differ.

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
from collections.abc import Iterable, Mapping, Sequence

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
    times = check.limit(evidence, "times")
    around = {step: _around(losses, step) for step in range(_AROUND, len(losses) - _AROUND)}
    spikes = [step for step, beside in around.items() if losses[step] > times * max(beside)]
    if not spikes or _jumps_anyway(losses, around, times):
        return
    step, (before, after) = spikes[0], around[spikes[0]]
    yield Claim(
        root=("spike",),
        specificity=Specificity.FALLBACK,
        stage=Stage.OUTCOME,
        scope=Scope.MODEL,
        finding=rule.finding(
            confidence=confidence(0.6, 0.5 if losses[step] > 100 * max(before, after) else 0.1),
            title=f"the loss jumped to {losses[step]:.3g} at step {step} and came back",
            explanation=f"The steps around it are at {before:.3g} and {after:.3g}: one batch is "
            "unlike the others, or one update was too large.",
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


def _around(losses: Sequence[float], step: int) -> tuple[float, float]:
    """The medians of the losses before a step and behind it."""
    return (
        statistics.median(losses[step - _AROUND : step]),
        statistics.median(losses[step + 1 : step + 1 + _AROUND]),
    )


def _jumps_anyway(
    losses: Sequence[float], around: Mapping[int, tuple[float, float]], times: float
) -> bool:
    """At least as many losses lie between half of the limit and the limit as above it: a loss of
    batches that differ so much by nature, of which one is now and then the highest."""
    ratios = [losses[step] / max(beside) for step, beside in around.items()]
    above = sum(ratio > times for ratio in ratios)
    below = sum(times / 2 < ratio <= times for ratio in ratios)
    return above > 1 and below >= above
