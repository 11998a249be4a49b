"""## What it checks
Attention whose queries were split into heads, (N, T, E) to (N, T, heads, E/heads), with no
dimension moved afterwards: the second-to-last dimension, over which attention runs, is that of the
heads.

## Why it matters
Each position attends to its own heads and to no other position. The shapes fit, but the model
cannot use other positions.

## Example
    q, k, v = (t.view(n, time, heads, -1) for t in qkv)
    F.scaled_dot_product_attention(q, k, v)

## Fix
    q, k, v = (t.view(n, time, heads, -1).transpose(1, 2) for t in qkv)

## See also
ND121 mixed-dimensions, ND133 attention-over-queries
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls, is_attention
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import (
    ATTENTION,
    BATCHED_PRODUCTS,
    CASTS,
    COPIES,
    DROPOUTS,
    FACTORS,
    MASKING,
    POSITION_NORMALISATIONS,
    RESHAPING,
)

_RESCALING = (*FACTORS, *CASTS)
_OF_SCORES = (*_RESCALING, *MASKING, *DROPOUTS, *COPIES, "add")
_OF_EACH_ROW = (*POSITION_NORMALISATIONS, *COPIES, "normalize")


@rule(
    "ND148",
    "attention-over-heads",
    "critical",
    "attention over the heads instead of the positions",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        queries = _queries(calls, call) if is_attention(call) else None
        split = _split(calls, queries) if queries is not None else None
        if queries is None or split is None:
            continue
        _, positions, heads, _ = split.shape
        yield learning_claim(
            rule,
            location_key(split.site) or ("heads", split.index),
            title=f"the attention runs over the {heads} heads, not over the {positions} positions",
            explanation=f"{split.name} turns {split.arguments[0].shape} into {split.shape}, and "
            "no dimension is moved before the attention, which runs over the second-to-last "
            "one. No position attends to the other positions.",
            culprit=at_call(split, evidence),
            step=0,
            weight=confidence(0.85, 0.3 if positions != heads else 0.0),
            notes=[("attention at", call.site.place if call.site is not None else None)],
            fix="transpose(1, 2) after it, and back after the attention",
            standing=WIRED,
        )
        return


def _queries(calls: StepCalls, call: CallFacts) -> ArgumentFacts | None:
    """What the attention compares with the keys."""
    if call.name in ATTENTION:
        return call.arguments[0] if call.name == ATTENTION[0] else None
    made = calls.maker(call.arguments[0])
    while made is not None and made.arguments and made.name in _OF_SCORES:
        made = calls.maker(made.arguments[0])
    return made.arguments[0] if made is not None and made.name in BATCHED_PRODUCTS else None


def _split(calls: StepCalls, queries: ArgumentFacts) -> CallFacts | None:
    """The call that has split off the heads, where nothing has moved since."""
    made = calls.maker(queries)
    while made is not None and made.arguments:
        given = made.arguments[0].shape
        if made.name in RESHAPING and len(given) == 3 and len(made.shape) == 4:
            n, positions, heads, width = made.shape
            heads_last = given == (n, positions, heads * width)
            apart = queries.shape == made.shape and positions > 1 and heads > 1 and width > 1
            return made if heads_last and apart else None
        if made.name not in (*_RESCALING, *_OF_EACH_ROW):
            return None
        made = calls.maker(made.arguments[0])
    return None
