"""## What it checks
Two parts of a batch with one row for each of its N samples: one is repeated sample by sample
(`repeat_interleave`), the other as a whole (`repeat`, `tile`), both the same number of times, and
the loss uses both.

Not reported if they are repeated N times: that gives all pairs.

## Why it matters
Almost all corresponding rows belong to different samples. Nothing fails, since the lengths agree.

## Example
    users = users.repeat_interleave(negatives)
    items = items.repeat(negatives)

## Fix
    items = items.repeat_interleave(negatives)

## See also
ND125 misaligned-targets, ND141 misplaced-positives
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim

_ONE_BY_ONE = ("repeat_interleave",)
_AS_A_WHOLE = ("repeat", "tile")


@rule(
    "ND151",
    "mixed-repeats",
    "critical",
    "parts of a batch repeated in different orders",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    repeated = [
        (calls, call, times)
        for calls, call in calls_into_the_loss(evidence)
        if (times := _times(calls, call)) is not None
    ]
    for calls, whole, times in repeated:
        if whole.name not in _AS_A_WHOLE:
            continue
        rows = whole.arguments[0].shape[0]
        for _, single, of_single in repeated:
            if single.name in _AS_A_WHOLE or of_single != times or times == rows:
                continue
            if single.arguments[0].shape[0] != rows:
                continue
            one, other = (calls.leaf(call.arguments[0]) for call in (whole, single))
            yield learning_claim(
                rule,
                location_key(whole.site) or ("repeats", whole.index),
                title=f"{one} is repeated as a whole, but {other} sample by sample",
                explanation=f"Both have {rows} rows and are repeated {times} times. Row {rows} of "
                f"the first belongs to sample 0 again, but row {rows} of the second to sample "
                f"{rows // times}.",
                culprit=at_call(whole, evidence),
                step=len(evidence.losses) - 1,
                weight=confidence(0.8, 0.5),
                notes=[("sample by sample at", single.site.place if single.site else None)],
                fix=f"repeat_interleave({times}) of both",
                standing=WIRED,
            )
            return


def _times(calls: StepCalls, call: CallFacts) -> int | None:
    """How often a part of the batch is repeated along its first dimension; None for other calls."""
    if call.name not in (*_ONE_BY_ONE, *_AS_A_WHOLE) or not call.shape:
        return None
    origin = call.arguments[0]
    leaf = calls.leaf(origin)
    if leaf is None or not leaf.startswith("batch") or not origin.shape or origin.shape[0] < 2:
        return None
    times, rest = divmod(call.shape[0], origin.shape[0])
    return times if times > 1 and not rest and call.shape[1:] == origin.shape[1:] else None
