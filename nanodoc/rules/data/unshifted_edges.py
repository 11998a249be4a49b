"""## What it checks
Some graphs of the data set are drawn one by one and passed to the loader's collate function, if
that is the user's code. The batch has the nodes of all of them, but their edges are concatenated
with unchanged numbers.

Not checked if a library collates the graphs, or if the number of nodes of a graph is unknown.

## Why it matters
All edges are between the first nodes of the batch, as many as the largest graph has. The nodes of
the other graphs have no neighbours. No error is raised.

## Example
    edge_index = torch.cat([graph.edge_index for graph in graphs], dim=1)

## Fix
    edges, offset = [], 0
    for graph in graphs:
        edges.append(graph.edge_index + offset)
        offset += graph.num_nodes

## See also
ND136 edge-index-out-of-range, ND143 misread-edges
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import item_claim


@rule(
    "ND150",
    "unshifted-edges",
    "critical",
    "a batch of graphs with all edges in the first one",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    seen = evidence.items.unshifted if evidence.items is not None else None
    if seen is None:
        return
    yield item_claim(
        rule,
        evidence,
        0,
        "",
        seen.line,
        title=f"the edges of {seen.graphs} graphs are concatenated with unchanged node numbers",
        explanation=f"The batch has {seen.nodes} nodes, but no edge goes beyond node "
        f"{seen.reached - 1}: the collate function does not add the number of preceding nodes "
        "to each graph's edges.",
        weight=confidence(0.8, 1 - seen.reached / seen.nodes),
        notes=[("edges", seen.edges), ("nodes", seen.nodes), ("highest node", seen.reached - 1)],
        fix="add the number of nodes of the preceding graphs to each graph's edges",
    )
