"""## What it checks
A line of the step that computes a new tensor and throws it away: a call that is a statement by
itself (`scores.masked_fill(mask, -1e9)`), or a result that is assigned to the variable of the
enclosing loop and not read again (`for p in weights: p = p * 0.9`). Loops over parameters are also
checked in the source, since they come after the optimizer's step.

## Why it matters
Only methods whose names end in an underscore write into their tensor; all others return a new one.
The mask is not applied, the value is not clamped, the average does not change, and nothing fails.

## Example
    scores.masked_fill(mask, float("-inf"))
    for slow, fast in zip(target.parameters(), model.parameters()):
        slow = 0.99 * slow + 0.01 * fast

## Fix
    scores = scores.masked_fill(mask, float("-inf"))
    for slow, fast in zip(target.parameters(), model.parameters()):
        slow.data.lerp_(fast.data, 0.01)

## See also
ND622 discarded-gradients; the torch documentation of in-place operations
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, learning_claim

_FIX = "assign the result to a name that is read, or write in place where autograd allows it"
_FIX_COPY = "write into the tensor itself: x[mask] = value, x.mul_(a).add_(b)"


@rule(
    "ND646",
    "discarded-result",
    "warning",
    "a line computes a tensor and throws it away",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    told: set[tuple[str, int] | None] = set()
    for line in inspection.lost_updates if inspection is not None else ():
        told.add((line.file, line.line))
        yield learning_claim(
            rule,
            location_key(line) or ("discarded", line.line),
            title=f"the result of {line.code.strip()[:60]} is thrown away",
            explanation="The loop goes over parameters, and this line computes a new value for "
            "one: it changes nothing in place.",
            culprit=Culprit(kind="op", location=line),
            step=inspection.step if inspection is not None else None,
            weight=0.95,  # no line of a program is there to compute what nothing can read
            fix=_FIX,
            standing=WIRED,
        )
    for index in inspection.discarded if inspection is not None else ():
        call = inspection.calls.calls[index] if inspection is not None else None
        at = (call.site.file, call.site.line) if call is not None and call.site else None
        if call is None or at in told:
            continue
        told.add(at)
        text = (call.site.expression if call.site is not None else None) or call.name
        shown = text if len(text) <= 40 else call.name
        yield learning_claim(
            rule,
            location_key(call.site) or ("discarded", call.index),
            title=f"the result of {shown} is thrown away",
            explanation=_why(call),
            culprit=at_call(call, evidence),
            step=inspection.step if inspection is not None else None,
            weight=0.97,  # the call ran, and the syntax leaves no name for what it gave
            fix=_FIX_COPY if call.in_place else _FIX,
            standing=WIRED,
        )


def _why(call: CallFacts) -> str:
    if call.in_place:
        return (
            f"The expression before .{call.name}_ makes a copy of shape {list(call.shape)} "
            "without a name, so nothing can read what is written into it."
        )
    return (
        f"{call.name} changes nothing in place: it returned a new tensor of shape "
        f"{list(call.shape)}, which nothing can read."
    )
