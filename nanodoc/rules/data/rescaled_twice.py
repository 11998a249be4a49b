"""## What it checks
Parts of the batch that the step maps with 2x − 1 (0 … 1 to −1 … 1) although their values already
lie between −1 and 1.

## Why it matters
The model learns on values from −3 to 1. Its samples are mapped back only once, and everything below
−1 is lost.

## Example
    images = images / 127.5 - 1
    diffusion = GaussianDiffusion(model, image_size=32)   # maps 0 … 1 to −1 … 1 by itself

## Fix
    images = images / 255

## See also
ND107 unnormalised-input, ND119 changing-items
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import Range
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim

_WIDEST = 1.05  # of values from −1 to 1
_REACHES = 0.5  # on both sides of 0
_FAR = 2.8  # behind the map: all of the range was used


@rule(
    "ND147",
    "rescaled-twice",
    "warning",
    "inputs between −1 and 1 that are mapped with 2x − 1 again",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    for call in calls.calls if calls is not None else ():
        assert calls is not None
        leaf = _mapped(calls, call)
        after = call.notes.scaled
        if leaf is not None and after is not None and _was_signed(after):
            yield _claim(rule, evidence, call, leaf, after)
            return


def _was_signed(after: Range) -> bool:
    """Before the map, the values lay between −1 and 1, on both sides of 0."""
    low, high = (after.low + 1) / 2, (after.high + 1) / 2
    return -_WIDEST <= low < -_REACHES and _REACHES < high <= _WIDEST


def _mapped(calls: StepCalls, call: CallFacts) -> str | None:
    """The part of the batch of which the call makes 2x − 1; None for other calls."""
    first = calls.maker(call.arguments[0]) if call.arguments else None
    if first is None or not first.arguments:
        return None
    steps = [_step(first), _step(call)]
    if steps not in ([("factor", 2.0), ("offset", -1.0)], [("offset", -0.5), ("factor", 2.0)]):
        return None
    return calls.leaf(first.arguments[0])


def _step(call: CallFacts) -> tuple[str, float] | None:
    number = call.notes.number
    if number.offset is not None:
        return "offset", number.offset
    return ("factor", number.factor) if number.factor is not None else None


def _claim(rule: Rule, evidence: Evidence, call: CallFacts, leaf: str, after: Range) -> Claim:
    inspection = evidence.inspection
    made = inspection.criterion_at if inspection is not None else None
    culprit = at_call(call, evidence)
    if call.called_from is not None and made is not None:
        culprit = replace(culprit, location=made)
    low, high = after.low, after.high
    before = f"{(low + 1) / 2:.3g} to {(high + 1) / 2:.3g}"
    return learning_claim(
        rule,
        location_key(culprit.location) or ("rescaled", leaf),
        title=f"{leaf} is mapped with 2x − 1, but already lies between −1 and 1",
        explanation=f"Its values range from {before} before the map, and from {low:.3g} to "
        f"{high:.3g} after it. The map is meant for values from 0 to 1.",
        culprit=culprit,
        step=inspection.step if inspection is not None else None,
        weight=confidence(0.8, 0.3 if low < -_FAR else 0.0),
        notes=[("mapped at", call.site.place if call.site is not None else None)],
        fix="scale the data to 0 … 1, or switch off the second map (auto_normalize=False)",
        standing=WIRED,
    )
