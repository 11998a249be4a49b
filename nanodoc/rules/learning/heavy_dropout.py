"""## What it checks
Dropout in training mode, on the way to the loss, that drops four fifths of its input or more. The
finding is an info if the run was too short to tell, or if the loss fell to half of its first value
or less: the model learns in spite of it.

## Why it matters
In torch, p is the fraction that is dropped. Other libraries take the fraction that is kept: their
0.9 drops nine tenths of the signal here.

## Example
    nn.Dropout(p=0.9)        # keep_prob in older code

## Fix
    nn.Dropout(p=0.1)

## See also
ND607 loss-not-decreasing
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import late_loss
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import SHORTEST, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import DROPOUTS

_LITTLE = 0.5  # of the first loss


@rule(
    "ND634",
    "heavy-dropout",
    "warning",
    "dropout that drops nearly everything",
    needs=("inspection",),
    thresholds={
        "share": Threshold(0.8, "fraction of values that are dropped; torch's default is 0.5")
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for _, call in calls_into_the_loss(evidence):
        share = call.options.get("p")
        if call.name not in DROPOUTS or call.options.get("training") is False:
            continue
        if not isinstance(share, float) or share < check.limit(evidence, "share"):
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("dropout", call.index),
            severity=rule.severity if _learnt_little(evidence) else "info",
            title=f"dropout drops {share:.0%} of the "
            f"input{f' of {call.module}' if call.module else ''}",
            explanation=f"Of 100 values {100 * (1 - share):.0f} are left, {1 / (1 - share):.3g} "
            "times as large. p is the fraction that is dropped, not the one that is kept."
            if share < 1
            else "Nothing is left of its input.",
            culprit=at_call(call, evidence),
            step=0,
            weight=confidence(0.6, 0.6 if share >= 0.9 else 0.2),
            notes=[("p", share)],
            fix=f"p={1 - share:.2g}, if {share:g} should be kept",
        )
        return


def _learnt_little(evidence: Evidence) -> bool:
    losses = evidence.losses
    return len(losses) >= SHORTEST and late_loss(losses) > _LITTLE * losses[0] > 0
