"""## What it checks
Random draws that the loss depends on, in the last step and some steps before it, each re-run from
its initial random states: each time, the generator had just been seeded with the same number. The
finding names the line that seeds it if that is in the same function, else the draw.

A seed that changes from step to step is not reported.

## Why it matters
Every step draws the same numbers: the same noise, the same time steps, the same dropout. A model
memorises that one draw and learns nothing about others.

## Example
    for clean, in loader:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(clean.shape, generator=generator)

## Fix
    generator = torch.Generator().manual_seed(0)
    for clean, in loader:
        noise = torch.randn(clean.shape, generator=generator)

## See also
ND127 repeated-draws, ND123 unseen-noise
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import MATRIX_PRODUCTS


@rule(
    "ND149",
    "repeated-noise",
    "critical",
    "random numbers that are the same in every step",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    if calls is None or inspection is None or inspection.batches < 2:
        return
    reaching = calls.reaching_the_loss()
    redrawn = [calls.calls[i] for i in inspection.redrawn if i in reaching]
    drawn = [call for call in redrawn if not _is_a_weight(calls, call)]
    if not drawn:
        return
    first = drawn[0]
    seeded = inspection.seeded_at
    yield learning_claim(
        rule,
        location_key(first.site) or ("draws", first.index),
        title=f"{first.name} draws the same numbers in every step",
        explanation=f"In each of {inspection.batches} re-run steps, its generator had just been "
        "seeded with the same number, and nothing had been drawn from it since.",
        culprit=at_call(first, evidence) if seeded is None else Culprit(kind="op", location=seeded),
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, min(1.0, inspection.batches / 4)),
        notes=[
            ("drawn at", first.site.place if seeded and first.site is not None else None),
            ("examined steps", inspection.batches),
        ],
        fix="seed the generator once, before training",
        standing=WIRED,
    )


def _is_a_weight(calls: StepCalls, draw: CallFacts) -> bool:
    """Something is multiplied by it as by a layer's weights: a random projection, which is to be
    the same each time."""

    only_of_it = {draw.index}
    for call in calls.calls[draw.index + 1 :]:
        own = [argument.made_by in only_of_it for argument in call.arguments]
        if own and all(own):
            only_of_it.add(call.index)
        elif call.name in (*MATRIX_PRODUCTS, "linear") and any(own):
            others = [a for a, mine in zip(call.arguments, own, strict=True) if not mine]
            # of a layer's own weights it would be the data
            if not any((a.leaf or "").startswith("param:") for a in others):
                return True
    return False
