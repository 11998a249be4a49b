"""## What it checks
Some graphs of the data set are drawn one by one and given to the loader's own collate function,
where that is the user's code. The batch holds their edges one behind the other with the same
numbers, though it holds the nodes of all of them.

Silent where a library puts the graphs together, and where nothing tells how many nodes a graph has.

## Why it matters
All edges lie among the nodes of the first graph, the largest one at most. The other graphs have
none: their nodes hear of no neighbour. No error is raised.

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
    "a batch of graphs whose edges all lie in the first one",
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
        title=f"the edges of {seen.graphs} graphs are put together with the numbers they had",
        explanation=f"The batch has {seen.nodes} nodes, and no edge leads beyond node "
        f"{seen.reached - 1}: the collate function does not add the number of nodes before each "
        "graph.",
        weight=confidence(0.8, 1 - seen.reached / seen.nodes),
        notes=[("edges", seen.edges), ("nodes", seen.nodes), ("highest node", seen.reached - 1)],
        fix="add the number of nodes of the graphs before it to each graph's edges",
    )
