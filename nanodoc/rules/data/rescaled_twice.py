"""## What it checks
Parts of the batch that the step maps by 2x − 1, which makes −1 to 1 of 0 to 1, while their values
lie between −1 and 1 already.

## Why it matters
The model learns on values from −3 to 1. What it generates is mapped back by half of that only, and
everything below is lost.

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
from nanodoc.facts.loop import BatchLeaf
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim

_WIDEST = 1.05  # of values from −1 to 1
_REACHES = 0.5  # on both sides of 0


@rule(
    "ND147",
    "rescaled-twice",
    "warning",
    "inputs between −1 and 1 that are mapped by 2x − 1 once more",
    needs=("inspection", "data"),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    signed = {leaf.path: leaf for leaf in data.leaves if _is_signed(leaf)}
    for call in calls.calls:
        mapped = _mapped(calls, call)
        if mapped in signed:
            yield _claim(rule, evidence, call, signed[mapped])
            return


def _is_signed(leaf: BatchLeaf) -> bool:
    low, high = leaf.minimum, leaf.maximum
    return leaf.floating and -_WIDEST <= low < -_REACHES and _REACHES < high <= _WIDEST


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
    kind = "offset" if "offset" in call.notes else "factor"
    return (kind, call.notes[kind]) if kind in call.notes else None


def _claim(rule: Rule, evidence: Evidence, call: CallFacts, leaf: BatchLeaf) -> Claim:
    inspection = evidence.inspection
    made = inspection.criterion_at if inspection is not None else None
    inside = call.called_from is not None
    culprit = at_call(call, evidence)
    if inside and made is not None:
        culprit = replace(culprit, location=made)
    return learning_claim(
        rule,
        location_key(culprit.location) or ("rescaled", leaf.path),
        title=f"{leaf.path} is mapped by 2x − 1, and lies between −1 and 1 already",
        explanation=f"Its values go from {leaf.minimum:.3g} to {leaf.maximum:.3g} before, and from "
        f"{2 * leaf.minimum - 1:.3g} to {2 * leaf.maximum - 1:.3g} behind it. The map is meant for "
        "values from 0 to 1.",
        culprit=culprit,
        step=inspection.step if inspection is not None else None,
        weight=confidence(0.8, 0.3 if leaf.minimum < -2 * _REACHES + 0.1 else 0.0),
        notes=[
            ("range", f"{leaf.minimum:.4g} … {leaf.maximum:.4g}"),
            ("mapped at", call.site.place if call.site is not None else None),
        ],
        fix="scale the data to 0 … 1, or switch off the second map (auto_normalize=False)",
        standing=WIRED,
    )
