"""## What it checks
Losses in the last step that expect targets of 1 or -1 (`cosine_embedding_loss`,
`hinge_embedding_loss`, `margin_ranking_loss`, `soft_margin_loss`) but get only 0 and 1.

## Why it matters
A target of 0 is neither. Its samples add nothing or a constant to the loss: pairs that should be
pushed apart are ignored, and all embeddings end up in one place.

## Example
    loss = F.cosine_embedding_loss(a, b, same.float())

## Fix
    loss = F.cosine_embedding_loss(a, b, 2 * same.float() - 1)

## See also
torch.nn.CosineEmbeddingLoss
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND134",
    "unsigned-labels",
    "critical",
    "labels 0 and 1 for a loss that expects 1 and -1",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for _, call in calls_into_the_loss(evidence):
        share = call.notes.loss.zeros
        if not share:
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("signs", call.index),
            title=f"{call.name} gets labels 0 and 1, but expects 1 and -1",
            explanation=f"{share:.0%} of the targets of the last batch are 0, and none is -1. To "
            "torch a target of 0 is neither and teaches nothing.",
            culprit=at_call(call, evidence),
            step=0,
            weight=confidence(0.85, 0.3 if share < 1 else 0.0),
            notes=[("targets that are 0", f"{share:.0%}")],
            fix="2 * target - 1",
            standing=WIRED,
        )
        return
