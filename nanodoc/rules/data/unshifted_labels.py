"""## What it checks
The class labels of the last step, compared with the token ids that its embeddings look up. The
labels of a next-token model are its inputs one position later. Here they are the inputs of the same
position, of an earlier one, or of two positions later.

Not reported if the labels are one position earlier and the step reverses sequences (`flip`), as in
a backward model; if an embedding of the same step looks up the ids one position earlier, or many of
them (a translation decoder, word dropout); or if less than 99 % of the labels agree (a masked
language model replaces the tokens to predict).

## Why it matters
With unshifted labels, the answer is in the input: the loss falls to zero, and the model copies.
With labels shifted twice, in the data and again inside the model, it learns to skip a token.

## Example
    inputs, labels = ids[:, :-1], ids[:, :-1]

## Fix
    inputs, labels = ids[:, :-1], ids[:, 1:]

Models from transformers shift the labels themselves: pass `labels=ids`.

## See also
ND118 missing-causal-mask
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, learning_claim
from nanodoc.vocabulary.calls import FLIPS


@rule(
    "ND117",
    "unshifted-labels",
    "warning",
    "labels of a language model that are not its next tokens",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.sequence if inspection is not None else None
    if inspection is None or seen is None or seen.distance == 1:
        return
    if seen.distance < 0 and _reads_backwards(inspection.calls):
        return
    twice = seen.distance > 1
    where = (
        "two positions later"
        if twice
        else "of the same position"
        if seen.distance == 0
        else "one position earlier"
    )
    place = inspection.loss_by_hand or inspection.labels_at or seen.at
    yield learning_claim(
        rule,
        location_key(place) or ("labels",),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        title=f"the labels are the input tokens {where}",
        explanation=f"Of {seen.labels} labels at least 99 % are the tokens that the model reads "
        + (
            "two positions later: they are shifted twice, and the next token is never predicted."
            if twice
            else f"{where}: the answer is in the input, and there is nothing to predict."
        ),
        culprit=Culprit(kind="data", location=place),
        step=inspection.step,
        weight=confidence(0.9, 0.3 if seen.labels >= 256 else 0.0),
        notes=[
            ("labels compared", seen.labels),
            ("positions in a sequence", seen.positions),
            ("compared at", seen.at.place if seen.at is not None else None),
        ],
        fix="shift the labels by one: inputs ids[:, :-1], labels ids[:, 1:]; once, in the data or "
        "in the model",
    )


def _reads_backwards(calls: StepCalls) -> bool:
    """A language model for the other direction turns its sequences around by itself."""
    return any(call.name in FLIPS for call in calls.calls)
