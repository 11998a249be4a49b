"""## What it checks
Data sets of graphs whose samples have an `edge_index` of shape (2, edges) and node features `x`, as
those of torch_geometric: whether each edge joins two nodes of its own graph. As many graphs are
looked at as there is time for.

## Why it matters
In a batch the graphs are put one behind the other. An edge to a node that its graph does not have
leads into the next graph of the batch, which changes what both of them are computed from. Only in
the last graph of a batch it is an index error.

## Example
    edges = torch.tensor([[0, 1], [1, 3]])      # of a graph with three nodes: 0, 1 and 2
    Data(x=torch.randn(3, 8), edge_index=edges)

## Fix
    Data(x=x, edge_index=edges).validate()      # torch_geometric tells of it, too

## See also
ND102 index-out-of-range, ND510 cross-sample-leak
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import item_claim


@rule(
    "ND136",
    "edge-index-out-of-range",
    "warning",
    "a graph has an edge to a node that it does not have",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.items.stray if evidence.items is not None else None
    if graph is None:
        return
    source, target = graph.edge
    yield item_claim(
        rule,
        evidence,
        graph.index,
        graph.part,
        graph.line,
        title=f"an edge of graph {graph.index} leads out of it: {source} to {target}, of "
        f"{graph.nodes} nodes",
        explanation=f"{graph.stray} of the {graph.edges} edges of sample {graph.index} join nodes "
        "that it does not have. In a batch they lead into another graph.",
        weight=confidence(0.85, 0.5 if graph.line is not None else 0.0),
        notes=[("nodes", graph.nodes), ("edge", f"{source} to {target}")],
        fix="number the nodes of each graph from 0 up to the number of its nodes less 1",
    )
