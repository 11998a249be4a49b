"""## What it checks
Units for which ReLU or a similar activation returns exactly 0 for every sample. At the end of the
run, its last batch and up to three earlier ones are run once more with the final weights. The
finding is an info when more than half of a layer's units are dead, a warning when nine in ten are
and the loss does not come down, and critical when all are, or when a class of a classifier's output
is.

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
from nanodoc.facts.bootstrapped import bootstrapped
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import InspectionFacts, UnitFacts
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.rules.base import count, location_key
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    at_call,
    learning_claim,
    loss_call,
)
from nanodoc.rules.learning.units import FEWEST_UNITS, FEWEST_VALUES
from nanodoc.vocabulary.calls import CLASSIFICATION, REGRESSION, SQUASHERS

_OVER_LOGITS = (*CLASSIFICATION, "binary_cross_entropy_with_logits")


_NEARLY_ALL = 0.9  # of the units of a layer


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
    for layer in inspection.units:
        if (
            not layer.saturated
            and layer.units >= 1
            and layer.values >= FEWEST_VALUES * layer.units
            and layer.call.name not in SQUASHERS
        ):
            claim = _dead(rule, evidence, layer)
            if claim is not None:
                yield claim
                return


def _dead(rule: Rule, evidence: Evidence, layer: UnitFacts) -> Claim | None:
    """The claim on a layer's dead units, if they are worth one."""
    call, inspection = layer.call, evidence.inspection
    assert inspection is not None
    told = _told(inspection, layer, check.limit(evidence, "share"))
    if told is None:
        return None
    title, why = told
    whole = layer.dead == layer.units
    # a dead branch beside one that learns is no end of the run
    serious = layer.output or (whole and late_loss(evidence.losses) > evidence.losses[0] / 2)
    # targets that the network itself moves: its loss need not fall, and units die as a rule
    moves = next(bootstrapped(inspection.calls), None) is not None
    some = layer.dead < _NEARLY_ALL * layer.units  # the others may do
    learns = moves or late_loss(evidence.losses) < NO_BETTER * evidence.losses[0]
    return learning_claim(
        rule,
        location_key(call.site) or ("units", call.module),
        standing=Standing(
            scope=Scope.CAUSE if layer.output else Scope.LAYERS,
            specificity=Specificity.EXACT if serious else Specificity.SPECIAL,
        ),
        title=title,
        explanation=why,
        culprit=at_call(call, evidence),
        severity="critical" if serious else "info" if not whole and (learns or some) else "warning",
        step=inspection.step,
        weight=confidence(
            0.8 if serious else 0.6, 0.4 if inspection.batches > 2 else 0.1, 0.4 if whole else 0.0
        ),
        notes=[
            ("dead units", f"{layer.dead} of {layer.units}"),
            ("values examined", layer.values),
            ("batches", inspection.batches),
        ],
        fix="use no activation on the output"
        if layer.output
        else "use a lower learning rate, LeakyReLU or GELU, and an initialisation meant for ReLU "
        "(kaiming)",
    )


def _told(inspection: InspectionFacts, layer: UnitFacts, share: float) -> tuple[str, str] | None:
    """Title and explanation; None where too few units are dead, or where it is no layer. `share` is
    the threshold."""
    call, calls = layer.call, inspection.calls
    # a margin or a penalty that is met, not a layer
    if layer.output and not _is_predicted(calls, call, (*_OVER_LOGITS, *REGRESSION)):
        return None
    if layer.dead == layer.units:
        every = f": all {layer.units} units are dead" if layer.units > 1 else ""
        return (
            f"{call.name} returns 0 for every sample{every}",
            "Its input is negative everywhere, where its derivative is 0: no gradient passes "
            "through it any more, so it cannot recover.",
        )
    if layer.output and layer.dead and _is_predicted(calls, call, _OVER_LOGITS):
        return (
            f"{call.name} on the outputs: {layer.dead} of {layer.units} classes are 0 for every "
            "sample",
            "A loss over logits needs logits below zero; where they are clipped, the class gets "
            "no gradient.",
        )
    if (
        layer.output
        or layer.dead <= share * layer.units
        or layer.units < FEWEST_UNITS
        or inspection.batches < 2
    ):
        return None
    return (
        f"{layer.dead} of {layer.units} units are dead after {call.name}",
        "They were 0 for every sample of "
        f"{count(inspection.batches, 'batch').replace('batchs', 'batches')}: they get no gradient "
        "and contribute nothing.",
    )


def _is_predicted(calls: StepCalls, call: CallFacts, losses: tuple[str, ...]) -> bool:
    """What it returns is what one of these losses compares with targets."""
    loss = loss_call(calls, losses)
    made = calls.origin(loss.arguments[0]) if loss is not None and loss.arguments else None
    return isinstance(made, CallFacts) and made.index == call.index
