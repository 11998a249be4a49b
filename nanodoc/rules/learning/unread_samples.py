"""## What it checks
Samples of which the loss reads nothing. Where a step takes a part of a tensor by a number or a
slice, up to four of the last steps are run again, and the gradients of what the first layers are
given are looked at, sample by sample. Reported if the same half of the samples, or more, has no
gradient in each step, though the samples are others. Left alone are parts taken by a mask or by
indices, and steps that read their data, or what the part is taken from, in another way as well.
Behind batch norm, which may be meant to see more samples, a single sample must be all that is
read.

A collate function of the user's is also given samples one of which is exchanged for another. If
the batch stays the same for half of the samples or more, it holds nothing of them.

## Why it matters
The batch is computed as a whole and learnt from in part: the training is as slow as with the whole
batch, and as noisy as with the part.

## Example
    scores = model(x)[0]                # the model returns a tensor, not a tuple
    loss = F.mse_loss(scores, y[0])

## Fix
    scores = model(x)
    loss = F.mse_loss(scores, y)

## See also
ND111 broadcast-loss, ND677 idle-term
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_SURE = 4  # steps


@rule(
    "ND681",
    "unread-samples",
    "warning",
    "samples of each batch that the loss does not read",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    yield from _uncollated(rule, evidence)
    inspection = evidence.inspection
    seen = inspection.unread_rows if inspection is not None else None
    if inspection is None or seen is None:
        return
    yield learning_claim(
        rule,
        location_key(seen.taken.site) or ("unread", seen.taken.index),
        title=f"the loss reads {seen.read} of {seen.rows} samples of each batch",
        explanation=f"The model computes {seen.rows} samples, and this takes a part of what it "
        f"gives. In {seen.steps} of the last steps, each with other samples, the same "
        f"{seen.rows - seen.read} have no gradient: nothing else reads them.",
        culprit=Culprit(kind="op", op=seen.taken.name, location=seen.taken.site),
        step=inspection.step,
        weight=confidence(0.8, 0.5 if seen.steps >= _SURE else 0.0),
        notes=[("samples with a gradient", f"{seen.read} of {seen.rows}")],
        fix="let the loss read the whole batch, or give the model only the samples that it reads",
        standing=WIRED,
    )


def _uncollated(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Samples that do not come into the batch."""
    seen = evidence.items.uncollated if evidence.items is not None else None
    if seen is None:
        return
    yield learning_claim(
        rule,
        location_key(seen.line) or ("data", rule.name),
        title=f"the batch holds {seen.read} of the {seen.of} samples that were drawn for it",
        explanation=f"The collate function was given {seen.of} samples, and each of them was "
        f"exchanged for another in turn: the batch stays the same for {seen.of - seen.read} of "
        "them.",
        culprit=Culprit(
            kind="data",
            dataset_indices=(seen.unread,),
            location=seen.line or evidence.data_site,
        ),
        phase="data",
        step=0,
        weight=confidence(0.7, (seen.of - seen.read) / (seen.of + 1)),
        notes=[("samples read", f"{seen.read} of {seen.of}")],
        fix="let the collate function put all samples into the batch",
        standing=WIRED,
    )
