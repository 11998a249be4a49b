"""## What it checks
Whether the scores that a loss is given are equal for all classes, or for all samples, while its
targets are not: measured in the last step, up to rounding. Then that step is run again with its ops
recorded, and from the scores back to the first op whose result is equal along this axis while what
it was made of is not. That op is to blame. Nothing is told where the scores were never different,
such as those of a head that is all zeros, or where one value was only spread by broadcasting.

## Why it matters
A softmax over equal scores is the same for each class whatever the weights are, so the loss stays
where it is. Typical are a mask that lets only padding through, a softmax over the wrong axis or
over one element, a mean over the samples, and units that are dead.

## Example
    mask = (ids == PAD)[:, None, None, :]        # True is what may be read
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

## Fix
    mask = (ids != PAD)[:, None, None, :]

## See also
ND618 collapsed-output, ND620 singleton-softmax, ND603 dead-units
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import EqualFacts
from nanodoc.facts.rates import is_creeping
from nanodoc.facts.trials import RATE
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import SHORTEST, Standing, learning_claim
from nanodoc.vocabulary.calls import ATTENTION, RECTIFIERS, SOFTMAXES


@rule(
    "ND670",
    "equal-scores",
    "critical",
    "an op after which the scores are the same for all classes or samples",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or inspection.equal is None or len(evidence.losses) < SHORTEST:
        return
    held = evidence.pattern.held_back if evidence.pattern is not None else None
    if is_creeping(evidence) and held is not None and held.kind == RATE:
        return  # the network is as it began, and a larger rate ends that
    found, calls = inspection.equal, inspection.calls
    loss = calls.calls[found.call]
    what = "samples" if found.axis == 0 else "classes" if found.axis == 1 else "positions"
    here = _calls_at(calls, found)
    why, fix = _why(here, found)
    public = (name for name in here if name in (*ATTENTION, *SOFTMAXES) or name in found.op.short)
    function = next(public, found.op.short)
    yield learning_claim(
        rule,
        location_key(found.op.site) or ("equal", found.call),
        # layers that are dead or saturated for all samples have their cause elsewhere
        standing=Standing(
            stage=Stage.WIRING,
            specificity=Specificity.SPECIAL,
            scope=Scope.CAUSE if found.axis else Scope.LAYERS,
        ),
        title=f"the scores are equal for all {found.size} {what} from this {function} on",
        explanation=f"What goes into it differs along these {what}, what comes out does not; "
        f"{loss.name} is given the same score for each. {why}",
        culprit=Culprit(
            kind="op",
            op=function,
            module=found.op.module,
            module_type=found.op.module_type,
            location=found.op.site,
        ),
        step=inspection.step,
        weight=confidence(0.8, 0.5),
        notes=[
            ("scores", str(list(loss.arguments[0].shape))),
            ("loss at", loss.site.place if loss.site is not None else None),
        ],
        fix=fix,
    )


def _calls_at(calls: StepCalls, found: EqualFacts) -> dict[str, CallFacts]:
    """The functions called where the op ran, by their names."""
    site = found.op.site
    return {
        call.name: call
        for call in calls.calls
        if site is not None and call.site is not None and call.site.line == site.line
    }


def _why(here: dict[str, CallFacts], found: EqualFacts) -> tuple[str, str]:
    """(what makes slices equal in such an op, what to do)"""
    attention = next((here[name] for name in ATTENTION if name in here), None)
    if attention is not None:
        masked = len(attention.arguments) > 3
        read = "its mask admits rows with equal values only, such as padding"
        read = read if masked else "the rows that it reads are equal"
        return (
            f"An average over the keys is the same for all queries where {read}.",
            "check which positions the mask lets through: for a boolean attn_mask True is what may "
            "be read; for a key_padding_mask it is what may not"
            if masked
            else "check what the keys and values are made of",
        )
    if any(name in here for name in SOFTMAXES):
        return (
            "A softmax that is taken over another axis, or over one element, makes them so.",
            "take the softmax over the axis whose entries compete",
        )
    if any(name in here for name in RECTIFIERS):
        return (
            "All of its inputs are on the side where it returns 0.",
            "keep the units alive: a lower learning rate, another initialisation, or LeakyReLU",
        )
    return (
        "Whatever distinguished them is lost there.",
        f"keep the axis of the {'samples' if found.axis == 0 else 'classes'} out of what this line "
        "averages, masks or normalises",
    )
