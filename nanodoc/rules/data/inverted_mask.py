"""## What it checks
The mask of an attention call in the last step, where each position may see every later one, and
neither itself nor an earlier one.

## Why it matters
It is a causal mask upside down: True means "may be seen" for scaled_dot_product_attention and
"hidden" for MultiheadAttention, and a tril where a triu was meant does the same. The last position
sees nothing at all, and what the model learns to predict from it is given later.

## Example
    mask = torch.full((n, n), float("-inf")).tril()
    self.encoder(x, mask=mask)

## Fix
    mask = torch.full((n, n), float("-inf")).triu(1)

## See also
ND205 fully-masked-softmax, ND114 all-ones-mask
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND116",
    "inverted-mask",
    "critical",
    "a causal mask upside down: every position sees only what comes after it",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = [call for _, call in calls_into_the_loss(evidence) if call.notes.get("sees_only_later")]
    if not found:
        return
    call, positions = found[0], int(found[0].notes["sees_only_later"])
    several = len(found) > 1
    yield learning_claim(
        rule,
        location_key(call.site) or ("mask", call.index),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        title="the attention mask is upside down: each position sees only those after it",
        explanation=f"Of the {positions} positions the first sees all others, and the last sees "
        "none, not even itself. A causal mask hides what comes after.",
        culprit=at_call(call, evidence),
        step=evidence.inspection.step if evidence.inspection is not None else None,
        weight=confidence(0.9, 0.3 if several else 0.0),
        notes=[("attention calls with it", len(found)), ("positions", positions)],
        fix="hide the later positions: torch.full((n, n), float('-inf')).triu(1), or "
        "is_causal=True; a mask of bools means the opposite in scaled_dot_product_attention and "
        "in MultiheadAttention",
    )
