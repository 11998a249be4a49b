"""## What it checks
A regression whose loss has not fallen in at least 50 steps and has not doubled, while the largest
target of the last batch is far from 1 and many times as large as the largest prediction.

## Why it matters
A network that starts near zero has to grow its last layer step by step until it reaches targets of
a hundred thousand. With Adam each step changes a weight by about the learning rate, and with SGD
the first gradients are as large as the targets.

## Example
    loss = F.mse_loss(model(x), price)                    # prices of 300 000

## Fix
    loss = F.mse_loss(model(x), (price - mean) / std)

## See also
ND629 unreachable-target, ND606 divergence
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, learning_claim, loss_call
from nanodoc.vocabulary.calls import REGRESSION

_SHORTEST = 50  # steps
_FAR = 1_000.0  # times as large
_GROWN = 2.0  # times the loss that the run began with


@rule(
    "ND645",
    "unscaled-target",
    "warning",
    "targets that are far larger than the predictions",
    needs=("inspection",),
    thresholds={
        "times": Threshold(20.0, "times the largest prediction of the last batch"),
        # what is standardised lies far below: first predictions near zero are then no trouble
        "largest-target": Threshold(100.0, "size of the largest target of the last batch"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, losses = evidence.inspection, evidence.losses
    if inspection is None or len(losses) < _SHORTEST or len(inspection.calls.losses) != 1:
        return
    # the middle of many: one batch's squared error may be twice another's
    early, late = statistics.median(losses[: len(losses) // 4]), late_loss(losses)
    call = loss_call(inspection.calls, REGRESSION)
    times = _times(call) if call is not None else None
    targets = call.notes.loss.targets if call is not None else None
    if call is None or times is None or targets is None or not late > NO_BETTER * early > 0:
        return
    if late > _GROWN * early:  # the targets themselves have moved away
        return
    largest = targets.largest
    if times < check.limit(evidence, "times") or largest < check.limit(evidence, "largest-target"):
        return
    made = inspection.labels_at
    culprit = at_call(call, evidence) if made is None else Culprit(kind="data", location=made)
    yield learning_claim(
        rule,
        location_key(made or call.site) or ("target", "scale"),
        title=f"the targets are {times:.3g} times as large as the predictions",
        explanation=f"The largest target of the last batch is {largest:.3g}, the largest "
        f"prediction {largest / times:.3g}. In {len(losses)} steps the loss went from "
        f"{early:.3g} to {late:.3g}: with updates of this size the predictions do not get "
        "there.",
        culprit=culprit,
        step=len(losses) - 1,
        weight=confidence(0.75, 0.4 if times > _FAR else 0.0),
        notes=[("largest target", f"{largest:.3g}"), ("compared at", _place(call))],
        fix="standardise the targets, and scale the predictions back where they are read",
    )


def _times(call: CallFacts) -> float | None:
    """How many times the targets are as large as the predictions, by the largest of each."""
    inputs, targets = call.notes.loss.inputs, call.notes.loss.targets
    if inputs is None or targets is None or not inputs.largest:
        return None
    if len(call.arguments) < 2 or call.arguments[1].requires_grad:
        return None
    return targets.largest / inputs.largest


def _place(call: CallFacts) -> str | None:
    return call.site.place if call.site is not None else None
