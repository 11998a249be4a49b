"""## What it checks
Units that ReLU or its kin returns as exactly 0 for every sample. When the run is over its last
batch and up to three earlier ones are run once more with the weights it ended with. A warning when
more than half of a layer's units are dead; critical when all are, or when a class of a classifier's
output is.

## Why it matters
Where ReLU's input is negative its derivative is 0. A unit that is negative for every sample never
changes again.

## Example
    return F.relu(self.head(x))     # logits that cannot go below zero

## Fix
No activation on the output; a lower learning rate; LeakyReLU.

## See also
ND604 saturated-activations, ND618 collapsed-output
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CLASSIFICATION, REGRESSION, CallFacts, StepCalls, UnitFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import late_loss
from nanodoc.rules.base import count, location_key
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    at_call,
    learning_claim,
    loss_call,
)
from nanodoc.rules.learning.units import FEWEST_UNITS, FEWEST_VALUES

_OVER_LOGITS = (*CLASSIFICATION, "binary_cross_entropy_with_logits")


@rule(
    "ND603",
    "dead-units",
    "warning",
    "units that are zero for every sample",
    needs=("inspection",),
    thresholds={"share": Threshold(0.5, "share of a layer's units that are zero for every sample")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or len(evidence.losses) < SHORTEST:
        return
    for one in inspection.units:
        if (
            not one.saturated
            and one.units >= 1
            and one.values >= FEWEST_VALUES * one.units
            and one.call.name not in ("sigmoid", "tanh")
        ):
            claim = _dead(rule, evidence, one)
            if claim is not None:
                yield claim
                return


def _dead(rule: Rule, evidence: Evidence, one: UnitFacts) -> Claim | None:
    call, inspection = one.call, evidence.inspection
    assert inspection is not None
    whole = one.dead == one.units
    # a margin or a penalty that is met, not a layer
    if one.output and not _is_predicted(inspection.calls, call, (*_OVER_LOGITS, *REGRESSION)):
        return None
    if whole:
        title = (
            f"{call.name} returns 0 for every sample: all {one.units} units are dead"
            if one.units > 1
            else f"{call.name} returns 0 for every sample"
        )
        why = (
            "Its input is negative everywhere, where its derivative is 0: no gradient comes "
            "through it any more, and nothing can change that."
        )
    elif one.output and one.dead and _is_predicted(inspection.calls, call, _OVER_LOGITS):
        title = (
            f"{call.name} on the outputs: {one.dead} of {one.units} classes are 0 for every sample"
        )
        why = (
            "A loss over logits needs them to go below zero; where this one clips, the class gets "
            "no gradient."
        )
    elif (
        one.output
        or one.dead <= check.limit(evidence, "share") * one.units
        or one.units < FEWEST_UNITS
        or inspection.batches < 2
    ):
        return None
    else:
        title = f"{one.dead} of {one.units} units are dead after {call.name}"
        why = (
            "They were 0 for every sample of "
            f"{count(inspection.batches, 'batch').replace('batchs', 'batches')}: they get no "
            "gradient and add nothing."
        )
    # a dead branch beside one that learns is no end of the run
    serious = one.output or (whole and late_loss(evidence.losses) > evidence.losses[0] / 2)
    return learning_claim(
        rule,
        location_key(call.site) or ("units", call.module),
        standing=Standing(
            scope=Scope.CAUSE if one.output else Scope.LAYERS,
            specificity=Specificity.EXACT if serious else Specificity.SPECIAL,
        ),
        title=title,
        explanation=why,
        culprit=at_call(call, evidence),
        severity="critical" if serious else "warning",
        step=inspection.step,
        weight=confidence(
            0.8 if serious else 0.6, 0.4 if inspection.batches > 2 else 0.1, 0.4 if whole else 0.0
        ),
        notes=[
            ("dead units", f"{one.dead} of {one.units}"),
            ("values looked at", one.values),
            ("batches", inspection.batches),
        ],
        fix="no activation on the output"
        if one.output
        else "a lower learning rate, LeakyReLU or GELU, and an initialisation meant for ReLU "
        "(kaiming)",
    )


def _is_predicted(calls: StepCalls, call: CallFacts, losses: tuple[str, ...]) -> bool:
    """What it returns is what one of these losses compares with targets."""
    loss = loss_call(calls, losses)
    made = calls.origin(loss.arguments[0]) if loss is not None and loss.arguments else None
    return isinstance(made, CallFacts) and made.index == call.index
