"""## What it checks
A sum of the form x + (q - x) with nothing detached: it equals q, and its gradient goes only to q.

## Why it matters
The straight-through estimator gives the values of q and the gradient of x. Without detach() the two
x cancel, in the values and in the gradient: the layers before x get no gradient from the loss.

## Example
    quantized = inputs + (quantized - inputs)

## Fix
    quantized = inputs + (quantized - inputs).detach()

## See also
ND501 cut-graph; van den Oord et al. 2017, Neural discrete representation learning, section 3.2
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND518",
    "undetached-straight-through",
    "critical",
    "a straight-through estimator without detach()",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, total in calls_into_the_loss(evidence):
        if total.name != "add" or len(total.arguments) != 2:
            continue
        for kept, other in (total.arguments, total.arguments[::-1]):
            difference = calls.maker(other)
            if difference is None or not _cancels(calls, kept, difference):
                continue
            yield learning_claim(
                rule,
                location_key(total.site) or ("sum", total.index),
                title="x + (q - x) is q: nothing is detached",
                explanation=f"The sum of shape {list(total.shape)} has the quantised values, and "
                "its gradient also goes to them. The unquantised input gets no gradient from "
                "here.",
                culprit=at_call(total, evidence),
                step=len(evidence.losses) - 1,
                weight=confidence(0.8, 0.5),
                notes=[("difference", difference.site.place if difference.site else None)],
                fix="x + (q - x).detach()",
                standing=WIRED,
            )
            return


def _cancels(calls: StepCalls, kept: ArgumentFacts, difference: CallFacts) -> bool:
    """`difference` takes away the very tensor that it is added to, and both pass gradients."""
    if difference.name != "sub" or len(difference.arguments) != 2:
        return False
    other, taken = difference.arguments
    grads = kept.requires_grad and taken.requires_grad and other.requires_grad
    same = taken.made_by == kept.made_by and taken.leaf == kept.leaf
    known = kept.made_by is not None or kept.leaf is not None
    return grads and same and known and other.made_by != taken.made_by
