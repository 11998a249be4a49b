"""## What it checks
A part of the batch with the shape of the token ids that is used and is 1 everywhere in every batch,
although the ids end in padding.

## Why it matters
The model attends to padding.

## Example
    mask = torch.ones_like(ids)

## Fix
    mask = ids != pad

## See also
ND110 padding-dominated, ND205 fully-masked-softmax
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import batch_claim, id_fields, is_used
from nanodoc.rules.learning.claims import calls_of


@rule(
    "ND114",
    "all-ones-mask",
    "warning",
    "a mask that masks nothing although the ids are padded",
    needs=(
        "inspection",
        "data",
    ),
    preflight="batch",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    padded = [
        leaf for leaf in id_fields(calls, data.leaves) if leaf.ragged and leaf.top_share > 0.05
    ]
    for ids in padded:
        for leaf in data.leaves:
            if (
                leaf is ids
                or leaf.shape != ids.shape
                or not leaf.constant
                or leaf.maximum != 1
                or not is_used(calls, leaf.path)
            ):
                continue
            yield batch_claim(
                rule,
                evidence,
                leaf.path,
                title=f"the mask {leaf.path} is 1 everywhere, though {ids.path} is padded",
                explanation=f"{ids.top_share:.0%} of {ids.path} is the token {ids.top_value:.0f}, "
                f"in runs of different lengths at the ends of its rows; over {data.batches} "
                "batches the mask that goes with it lets every position through.",
                weight=confidence(0.7, 0.4 if data.batches > 3 else 0.1),
                notes=[
                    ("mask", leaf.path),
                    ("padding token", ids.top_value),
                    ("share of padding", round(ids.top_share, 3)),
                ],
                fix=f"build the mask from the ids: mask = ids != {ids.top_value:.0f}",
            )
            return
