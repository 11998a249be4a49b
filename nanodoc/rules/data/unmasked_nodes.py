"""## What it checks
A node classification on a graph object with disjoint masks of its nodes (`train_mask`,
`test_mask`), with a loss over all nodes, including those for validation and test.

## Why it matters
The model memorises the test labels. The test accuracy says nothing.

## Example
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out, data.y)

## Fix
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

## See also
ND128 split-overlap
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND159",
    "unmasked-nodes",
    "critical",
    "a loss that includes the test nodes",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.inspection.node_masks if evidence.inspection is not None else None
    if found is None:
        return
    masks, nodes = found
    marked = " and ".join(f"{count} by {name}" for name, count in masks.items())
    for _, call in calls_into_the_loss(evidence):
        labels = call.notes.labels
        if labels is None or call.reduction == "none" or labels.kept != nodes:
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("nodes", call.index),
            title=f"the loss is over all {nodes} nodes, which the graph's masks split",
            explanation="The model also learns the labels of nodes that it is tested on.",
            culprit=at_call(call, evidence),
            step=len(evidence.losses) - 1,
            # the fewer each marks, the less can it be meant
            weight=confidence(0.7, 0.9 * (1 - max(masks.values()) / nodes)),
            notes=[("nodes", nodes), ("marked", marked)],
            fix="index outputs and labels with the training mask before the loss",
            standing=WIRED,
        )
        return
