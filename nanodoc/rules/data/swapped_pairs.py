"""## What it checks
A step that predicts links: a binary cross entropy with one label per pair of nodes, compared with
the edges of the graph that the network reads. Nine in ten of the pairs with label 0 are edges of
that graph, and nine in ten of those with label 1 are not.

## Why it matters
The network learns the edges the wrong way round. The loss falls as usual.

## Example
    pairs = torch.cat([negative, positive], dim=1)
    labels = torch.cat([torch.ones(positive.size(1)), torch.zeros(negative.size(1))])

## Fix
Concatenate pairs and labels in the same order.

## See also
ND141 misplaced-positives, ND153 shuffled-apart
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, calls_of, learning_claim
from nanodoc.vocabulary.calls import BINARIES


@rule(
    "ND154",
    "swapped-pairs",
    "critical",
    "edges of a graph labelled as non-edges",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    found = inspection.swapped_pairs if inspection is not None else None
    if calls is None or inspection is None or found is None:
        return
    loss = next((c for c in calls.calls if c.name in BINARIES and len(c.arguments) > 1), None)
    at_loss = loss.site if loss is not None else None
    culprit = Culprit(kind="data", location=found.line or inspection.labels_at or at_loss)
    yield learning_claim(
        rule,
        location_key(culprit.location) or ("pairs",),
        title="the edges of the graph have label 0, and pairs that are not edges have label 1",
        explanation=f"Of {found.pairs} pairs of nodes, those with label 0 are among the "
        f"{found.edges} edges that the network reads, and those with label 1 are not: pairs "
        "and labels were concatenated in different orders.",
        culprit=culprit,
        step=len(evidence.losses) - 1,
        weight=confidence(0.85, 0.4 if found.pairs >= 64 else 0.1),
        notes=[("pairs", found.pairs), ("edges", found.edges)],
        fix="concatenate the pairs in the order of their labels",
        standing=WIRED,
    )
