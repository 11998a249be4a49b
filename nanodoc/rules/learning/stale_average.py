"""## What it checks
Averaged copies of the model, in eval mode, whose batch norms still have their initial running
statistics, mean 0 and variance 1, although those of the model have changed.

## Why it matters
Running means and variances are buffers, not parameters. An average of the parameters alone
normalises with statistics of no data: in validation, a model that learns well looks as if it did
not.

## Example
    for averaged, own in zip(ema.parameters(), model.parameters()):
        averaged.mul_(decay).add_(own, alpha=1 - decay)

## Fix
    for averaged, own in zip(ema.buffers(), model.buffers()):
        averaged.copy_(own)

Or torch.optim.swa_utils.AveragedModel(model, use_buffers=True).

## See also
ND613 wrong-mode, ND642 validated-in-training-mode
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_SHORTEST = 10  # steps


@rule(
    "ND653",
    "stale-average",
    "warning",
    "an averaged model with the batch norm statistics of step 0",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    # behind its loop a script may fill them
    if inspection is None or evidence.cut_short or len(evidence.losses) < _SHORTEST:
        return
    for average in inspection.stale_averages:
        yield learning_claim(
            rule,
            location_key(average.averaged_at) or ("average", average.name),
            title=f"{average.name} follows the model's weights, but the statistics of its "
            f"{average.layers} {average.layer_type} are still the initial ones",
            explanation="Its weights follow those of the model. The running statistics of its "
            "batch norms are still mean 0 and variance 1, and in eval mode it normalises "
            "with them.",
            culprit=Culprit(
                kind="module",
                module=average.name,
                module_type=average.layer_type,
                location=average.averaged_at,
            ),
            step=len(evidence.losses) - 1,
            weight=confidence(0.7, 0.3),
            fix="copy the model's buffers as well",
            standing=WIRED,
        )
