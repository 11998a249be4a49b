"""## What it checks
A classification of the nodes of a graph of torch_geometric that says which of them are for training
(`train_mask`): whether the loss is taken over all nodes, those of the validation and the test
included.

## Why it matters
The labels that the test asks for are learnt by heart. Its accuracy says nothing.

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
from nanodoc.facts.calls import CLASSIFICATION
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND159",
    "unmasked-nodes",
    "critical",
    "a loss over the nodes of the test, too",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    trained = evidence.inspection.trained_nodes if evidence.inspection is not None else None
    if trained is None:
        return
    marked, nodes = trained
    for _, call in calls_into_the_loss(evidence):
        targets = call.notes.get("targets", 0) - call.notes.get("ignored", 0)
        if call.name not in CLASSIFICATION or call.reduction == "none" or targets != nodes:
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("nodes", call.index),
            title=f"the loss is taken over all {nodes} nodes; train_mask marks {marked} of them",
            explanation="Those of the validation and of the test are learnt with their labels.",
            culprit=at_call(call, evidence),
            step=len(evidence.losses) - 1,
            # the fewer are marked, the less can it be meant
            weight=confidence(0.7, 0.9 * (1 - marked / nodes)),
            notes=[("nodes", nodes), ("marked by train_mask", marked)],
            fix="index the outputs and the labels by train_mask before the loss",
            standing=WIRED,
        )
        return
