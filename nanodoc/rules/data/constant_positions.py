"""## What it checks
Two embeddings whose ids have the same shape (sequences, positions) and whose outputs are added,
like those of tokens and positions. The ids of one of them are the same number in all examined
batches, although its table has at least one row per position. Not reported if something else is
added that may hold the positions: ids that differ, a parameter, a buffer, or a single number per
sequence that was expanded, such as its language. Models with recurrent layers or convolutions are
not reported either: these know the order.

## Why it matters
All positions have the same embedding. A transformer then sees a bag of words: it does not know
their order.

## Example
    positions = torch.zeros_like(ids)

## Fix
    positions = torch.arange(ids.shape[1]).expand_as(ids)

## See also
ND124 shared-rows
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import LookupNotes, Range
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import (
    CASTS,
    CELLS,
    COPIES,
    DROPOUTS,
    POSITION_NORMALISATIONS,
    RECURRENT,
)

_AS_IT_IS = (*DROPOUTS, *POSITION_NORMALISATIONS, *COPIES, *CASTS, "mul")
_IN_ORDER = (*RECURRENT, *CELLS, "conv1d")
_SHORTEST = 8  # positions: the kinds of segments are two, with as few rows


@rule(
    "ND132",
    "constant-positions",
    "warning",
    "positions that are all the same",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        lookup = call.notes.lookup
        if lookup is None or lookup.ids is None:
            continue
        ids = call.arguments[0]
        constant = _is_constant(call, lookup) and not _is_told(calls, call)
        beside = _tokens(calls, call) if constant else None
        if beside is None:
            continue
        made = calls.maker(ids)
        yield learning_claim(
            rule,
            location_key(call.site) or ("positions",),
            title=f"all {math.prod(ids.shape)} ids that {call.module or 'an embedding'} looks up "
            f"are {int(lookup.ids.low)}",
            explanation=f"Its table has {lookup.rows} rows, and its output is added to the "
            f"embedding of {beside.module or 'other ids'} at the same {ids.shape[-1]} positions: "
            "the positions cannot be distinguished.",
            culprit=at_call(made if made is not None and made.site is not None else call, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.3 if len(ids.shape) > 1 else 0.0),
            notes=[("ids", str(ids.shape)), ("rows", lookup.rows)],
            fix="number the positions: torch.arange(ids.shape[1])",
            standing=WIRED,
        )
        return


def _is_constant(call: CallFacts, lookup: LookupNotes) -> bool:
    positions = call.arguments[0].shape[-1] if call.arguments[0].shape else 0
    return _is_one(lookup.ids) and positions >= _SHORTEST and lookup.rows >= positions


def _is_one(ids: Range | None) -> bool:
    return ids is not None and ids.low == ids.high


def _is_told(calls: StepCalls, call: CallFacts) -> bool:
    """The ids are made of a part of the batch with fewer numbers, as the language of a sentence is,
    or are read by what knows the order without them."""
    ids = call.arguments[0]
    _, leaves = calls.behind(ids)
    fewer = any(a.of_batch and math.prod(a.shape) < math.prod(ids.shape) for a in leaves)
    return fewer or any(later.name in _IN_ORDER for later in calls.calls[call.index :])


def _tokens(calls: StepCalls, call: CallFacts) -> CallFacts | None:
    """The only lookup of ids that differ in the sum that `call` is a term of; None where the sum
    has other terms than lookups of ids of the same shape, which may be the positions."""
    terms, at = [call], call.index
    for later in calls.calls[call.index + 1 :]:
        others = [a for a in later.arguments if a.made_by != at]
        if len(others) == len(later.arguments):
            continue
        if later.name == "add" and len(others) == 1:
            made = calls.maker(others[0])
            more = list(_terms(calls, made)) if made is not None else []
            if made is not None and not more:
                break  # a layer's output: the sum of the embeddings is over
            if made is None or any(term.name != "embedding" for term in more):
                return None
            terms += more
            at = later.index
        elif later.name == "add" or later.name in _AS_IT_IS:
            at = later.index
    ids = call.arguments[0].shape
    if any(term.arguments[0].shape != ids for term in terms):
        return None
    lookups = [(term, term.notes.lookup) for term in terms]
    differing = [
        term
        for term, lookup in lookups
        if lookup is not None and lookup.ids is not None and not _is_one(lookup.ids)
    ]
    return differing[0] if len(differing) == 1 else None


def _terms(calls: StepCalls, call: CallFacts) -> list[CallFacts]:
    """The lookups, and the parts of parameters and buffers, that a call gives the sum of; nothing
    where it gives what a layer has made."""
    made = calls.origin(call.arguments[0]) if call.arguments else None
    if call.name == "embedding" or (call.view and not isinstance(made, CallFacts)):
        return [call]
    if call.name in _AS_IT_IS and (inner := calls.maker(call.arguments[0])) is not None:
        return _terms(calls, inner)
    if call.name != "add":
        return []
    found: list[CallFacts] = []
    for argument in call.arguments:
        inner = calls.maker(argument)
        more = _terms(calls, inner) if inner is not None else [call]
        if not more:
            return []
        found += more
    return found
