"""## What it checks
Graph data sets whose samples have an `edge_index` of shape (2, edges) and node features `x`, as in
torch_geometric: nanodoc checks whether each edge joins two nodes of its graph, in as many graphs as
there is time for.

## Why it matters
In a batch, the graphs are concatenated. An edge to a node that its graph does not have leads into
the next graph of the batch and changes the result for both. Only in the last graph of a batch is it
an index error.

## Example
    edges = torch.tensor([[0, 1], [1, 3]])      # a graph with three nodes: 0, 1 and 2
    Data(x=torch.randn(3, 8), edge_index=edges)

## Fix
    Data(x=x, edge_index=edges).validate()      # torch_geometric reports it too

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
        "that it does not have. In a batch, they lead into the next graph.",
        weight=confidence(0.85, 0.5 if graph.line is not None else 0.0),
        notes=[("nodes", graph.nodes), ("edge", f"{source} to {target}")],
        fix="number the nodes of each graph from 0 to the number of its nodes minus 1",
    )
