"""## What it checks
Edges (2, E) of a graph that a step reads: taken two by two, row by row, they contain the reverse of
every edge, as in an undirected graph; as columns, they do not. This means that a list of pairs (E,
2) was reshaped instead of transposed.

## Why it matters
The numbers stay valid nodes, so nothing raises. The model sees a graph of random edges.

## Example
    edge_index = torch.tensor(pairs).reshape(2, -1)

## Fix
    edge_index = torch.tensor(pairs).t().contiguous()

## See also
ND136 edge-index-out-of-range, ND121 mixed-dimensions
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim

_MANY = 128  # edges


@rule(
    "ND143",
    "misread-edges",
    "critical",
    "pairs of nodes that were reshaped to two rows, not transposed",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    if calls is None or inspection is None:
        return
    call = next((call for call in calls.calls if call.notes.misread_edges is not None), None)
    edges = call.notes.misread_edges if call is not None else inspection.misread_edges
    made = inspection.edges_at or inspection.reshaped_pairs_at
    if edges is None and inspection.reshaped_pairs_at is None:
        return
    at = at_call(call, evidence) if call is not None else Culprit(kind="data")
    culprit = Culprit(kind="data", location=made) if made else at
    yield learning_claim(
        rule,
        location_key(culprit.location) or ("edges",),
        title=f"the {edges} edges were read row by row from a list of pairs"
        if edges is not None
        else "the edges of a graph, a list of pairs, are reshaped to two rows",
        explanation="Taken two by two, their numbers contain the reverse of every edge; as "
        "columns of (2, E), they do not: the two nodes of a pair are next to each other in "
        "one row."
        if edges is not None
        else "A reshape keeps the order of the numbers: the two nodes of a pair end up next to "
        "each other in one row, and each column holds nodes of different edges.",
        culprit=culprit,
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 0.6 if edges is not None and edges >= _MANY else 0.2),
        notes=[("read at", call.site.place if call is not None and call.site else None)],
        fix="transpose the list of pairs: .t().contiguous()",
        standing=WIRED,
    )
