"""## What it checks
nll_loss whose first argument has values above 0.1: no probability has a positive logarithm. Also
ctc_loss whose frames are not distributions over the symbols: the logarithm of their sum is more
than 0.1 away from 0.

## Why it matters
nll_loss applies no softmax. On raw outputs it has no lower bound; the outputs grow and the loss
falls forever.

## Example
    loss = F.nll_loss(model(x), y)

## Fix
    loss = F.cross_entropy(model(x), y)

## See also
ND612 double-softmax, ND606 divergence
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import Range
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_into_the_loss
from nanodoc.vocabulary.calls import LOG_PROBABILITIES, NORMALISERS

_PROBABLE = 0.1
"""A log-probability exceeds zero by no more than rounding, or the constant that keeps its log
finite, does."""


@rule(
    "ND627",
    "not-log-probabilities",
    "critical",
    "nll_loss or ctc_loss of values that are not log-probabilities",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        sums = call.notes.loss.log_sums
        if sums is not None and call.arguments[0].requires_grad and sums.largest > _PROBABLE:
            yield _frames(rule, evidence, calls, call, sums)
            return
        if call.name != "nll_loss" or not call.arguments[0].requires_grad:
            continue
        inputs = call.notes.loss.inputs
        largest = inputs.high if inputs is not None else None
        made = calls.origin(call.arguments[0])
        if (
            largest is None
            or largest <= _PROBABLE
            or (isinstance(made, CallFacts) and made.name in NORMALISERS)
        ):
            continue
        yield Claim(
            root=location_key(call.site) or ("logs", call.index),
            specificity=Specificity.SPECIAL,
            stage=Stage.WIRING,
            finding=rule.finding(
                confidence=confidence(
                    0.6,
                    0.6 if largest > 1 else 0.2,
                    0.5 if (call.notes.value or 0.0) < 0 else 0.0,
                ),
                title=f"{call.name} gets values up to {largest:.3g}; log-probabilities are at "
                "most 0",
                explanation=f"{call.name} applies no softmax. On raw outputs it has no lower "
                "bound: they grow forever, right or wrong.",
                culprit=at_call(call, evidence),
                phase="forward",
                step=evidence.inspection.step if evidence.inspection else None,
                evidence=(("largest input", largest), ("its value", call.notes.value)),
                fixes=(Fix(title="use cross_entropy on the logits", confidence="likely"),),
            ),
        )
        return


def _frames(
    rule: Rule, evidence: Evidence, calls: StepCalls, call: CallFacts, sums: Range
) -> Claim:
    """CTC of what is no distribution over the symbols; `sums` are the logarithms of the sums of
    each frame's probabilities."""
    made = calls.origin(call.arguments[0])
    normalised = isinstance(made, CallFacts) and made.name in (*NORMALISERS, *LOG_PROBABILITIES)
    low, high = (math.exp(min(end, 99.0)) for end in (sums.low, sums.high))
    site = made if isinstance(made, CallFacts) and normalised else call
    return Claim(
        root=location_key(call.site) or ("logs", call.index),
        specificity=Specificity.SPECIAL,
        stage=Stage.WIRING,
        finding=rule.finding(
            confidence=confidence(0.8, 0.5 if (call.notes.value or 0.0) < 0 else 0.0),
            title="ctc_loss does not get log-probabilities: a frame's probabilities sum to "
            f"{low:.3g} … {high:.3g}",
            explanation="ctc_loss applies no softmax. "
            + (
                f"{site.name} did not run over the dimension of the symbols, the last one."
                if normalised
                else "On raw outputs it has no lower bound: they grow forever, right or wrong."
            ),
            culprit=at_call(site, evidence),
            phase="forward",
            step=evidence.inspection.step if evidence.inspection else None,
            evidence=(("its value", call.notes.value),),
            fixes=(
                Fix(title="apply log_softmax over the last dimension first", confidence="likely"),
            ),
        ),
    )
