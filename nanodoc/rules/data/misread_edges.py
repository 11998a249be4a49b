"""## What it checks
Edges (2, E) of a graph that a step reads: taken two by two, row by row, they hold the reverse of
every edge, as the list of an undirected graph does; as they are, they do not. Then a list of pairs
(E, 2) was reshaped, where it was to be transposed.

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
    "pairs of nodes that were reshaped to two rows, and not transposed",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    for call in calls.calls if calls is not None else ():
        edges = call.notes.get("misread_edges")
        if edges is None or inspection is None:
            continue
        made = inspection.edges_at
        culprit = Culprit(kind="data", location=made) if made else at_call(call, evidence)
        yield learning_claim(
            rule,
            location_key(culprit.location) or ("edges",),
            title=f"the {edges:.0f} edges were read row by row from a list of pairs",
            explanation="Taken two by two their numbers hold the reverse of every edge; as (2, E), "
            "one below the other, they do not: the two of a pair stand side by side in one row.",
            culprit=culprit,
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.6 if edges >= _MANY else 0.2),
            notes=[("read at", call.site.place if call.site is not None else None)],
            fix="transpose the list of pairs: .t().contiguous()",
            standing=WIRED,
        )
        return
