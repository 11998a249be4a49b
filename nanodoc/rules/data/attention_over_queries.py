"""## What it checks
Hand-written attention: a softmax over the second-to-last dimension whose result is multiplied by
the values from the left, so that the sum runs over the last one. If the result is transposed or
divided in between, as in slot attention, it is not checked.

## Why it matters
The weights of each query do not sum to one, and those of one query depend on the other queries.

## Example
    weights = (q @ k.transpose(-2, -1) / math.sqrt(d)).softmax(dim=-2)
    return weights @ v

## Fix
    weights = (q @ k.transpose(-2, -1) / math.sqrt(d)).softmax(dim=-1)

## See also
ND513 cross-sample-leak, ND620 singleton-softmax
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import BATCHED_PRODUCTS, CASTS, COPIES, DROPOUTS

_AS_THEY_ARE = (*CASTS, *COPIES, *DROPOUTS)


@rule(
    "ND133",
    "attention-over-queries",
    "critical",
    "attention with a softmax over the queries",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        made = _weights(calls, call) if call.name in BATCHED_PRODUCTS else None
        if made is None or not _goes_over_queries(made, call):
            continue
        queries, keys = made.shape[-2:]
        yield learning_claim(
            rule,
            location_key(made.site) or ("queries", made.index),
            title="the softmax of the attention runs over the queries",
            explanation=f"The weights of shape {made.shape} sum to one over dimension "
            f"{made.options['dim']}, the {queries} queries, and are then multiplied by the "
            f"values of the {keys} keys: the weights of each query do not sum to one.",
            culprit=at_call(made, evidence),
            step=0,
            weight=confidence(0.85, 0.4 if queries != keys else 0.0),
            notes=[("weights", str(made.shape)), ("softmax over", made.options["dim"])],
            fix="softmax(dim=-1)",
            standing=WIRED,
        )
        return


def _weights(calls: StepCalls, product: CallFacts) -> CallFacts | None:
    """The softmax that gives the left side of a product as it is."""
    made = calls.maker(product.arguments[0])
    while made is not None and made.name in _AS_THEY_ARE and made.arguments:
        made = calls.maker(made.arguments[0])
    return made if made is not None and made.name == "softmax" else None


def _goes_over_queries(made: CallFacts, product: CallFacts) -> bool:
    """Over the second last of at least three dimensions, where the product sums over the last."""
    dim, shape = made.options.get("dim"), made.shape
    if not isinstance(dim, int) or len(shape) < 3 or len(product.arguments) < 2:
        return False
    values = product.arguments[1].shape
    return dim % len(shape) == len(shape) - 2 and len(values) > 1 and values[-2] == shape[-1]
