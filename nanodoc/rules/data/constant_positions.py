"""## What it checks
Two embeddings whose ids have the same shape (sequences, positions) and whose outputs are added, as
tokens and positions are. The ids of one of them are one and the same number in the whole batch, and
its table has a row for each position of a sequence and more.

## Why it matters
All positions have the same embedding. A transformer then reads a bag of words: it cannot tell their
order.

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
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim

_SHORTEST = 8  # positions: the kinds of segments are two, with as few rows


@rule(
    "ND132",
    "constant-positions",
    "warning",
    "positions that are all the same",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    lookups = [
        (calls, call)
        for calls, call in calls_into_the_loss(evidence)
        if call.name == "embedding" and "id_min" in call.notes
    ]
    for calls, call in lookups:
        ids = call.arguments[0]
        beside = [
            other
            for _, other in lookups
            if other is not call
            and other.arguments[0].shape == ids.shape
            and other.notes["id_min"] < other.notes["id_max"]
            and _are_added(calls, call, other)
        ]
        if not beside or not _is_constant(call):
            continue
        made = calls.maker(ids)
        rows = int(call.notes["rows"])
        yield learning_claim(
            rule,
            location_key(call.site) or ("positions",),
            title=f"all {math.prod(ids.shape)} ids that {call.module or 'an embedding'} looks up "
            f"are {int(call.notes['id_min'])}",
            explanation=f"Its table has {rows} rows, and what it gives is added to the embedding "
            f"of {beside[0].module or 'other ids'} at the same {ids.shape[-1]} positions: no "
            "position can be told from another.",
            culprit=at_call(made if made is not None and made.site is not None else call, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.3 if len(ids.shape) > 1 else 0.0),
            notes=[("ids", str(ids.shape)), ("rows", rows)],
            fix="number the positions: torch.arange(ids.shape[1])",
            standing=WIRED,
        )
        return


def _is_constant(call: CallFacts) -> bool:
    positions = call.arguments[0].shape[-1] if call.arguments[0].shape else 0
    one = call.notes["id_min"] == call.notes["id_max"]
    return one and positions >= _SHORTEST and call.notes["rows"] >= positions


def _are_added(calls: StepCalls, one: CallFacts, other: CallFacts) -> bool:
    """Perhaps with others between them."""
    both = {one.index, other.index}
    for call in calls.calls[max(both) :]:
        if call.name in ("add", "radd", "iadd") and both <= _sum_of(calls, call):
            return True
    return False


def _sum_of(calls: StepCalls, call: CallFacts) -> set[int]:
    found: set[int] = set()
    waiting = [call]
    while waiting:
        each = waiting.pop()
        found.add(each.index)
        if each.name in ("add", "radd", "iadd"):
            waiting += [made for a in each.arguments if (made := calls.maker(a)) is not None]
    return found
